"""Many images on many machines: what is due, who judges it, and what came of it. Slurm and Ray do the scheduling."""
