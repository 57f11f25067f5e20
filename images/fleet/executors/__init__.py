"""Where jobs run: in this process, on Slurm through submitit, on Ray. Queues, retries and placement are theirs."""
