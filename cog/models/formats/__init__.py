"""Readers of checkpoint containers; no reader imports or calls a class or function that a file names."""
