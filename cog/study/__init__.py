"""Many tasks over models and data sets: units, tasks, SLURM, local workers."""
