"""Build or validate images on the machines of a cluster, whose tasks Slurm or Ray start."""
