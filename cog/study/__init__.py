"""Studies of many models and data sets: units of work, tasks, SLURM, local workers."""
