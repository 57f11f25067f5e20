"""`fleet`: images built or validated on the machines of a cluster. Slurm and Ray place and start the tasks."""
