"""How a process behaves: output folders, locks, signals, safe readers, seeds, ranks, progress, command-line helpers."""
