"""Studies of many models and data sets: outputs, tasks, SLURM, this machine, results."""
