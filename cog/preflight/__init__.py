"""``--check``: whether a command can start, found out before a GPU is taken.

Nothing is computed or written, and no lock is taken. Each module looks at one kind of command; what they share is in
``report`` (findings, and how they are shown) and ``machine`` (disks, memory, GPUs, output folders).
"""
