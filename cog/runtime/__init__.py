"""Process infrastructure: output folders, signals, safe readers, seeds, log, devices, command lines."""
