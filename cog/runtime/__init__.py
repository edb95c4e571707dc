"""Process infrastructure: output folders, locks, signals, safe readers, seeds, ranks, progress, command lines."""
