"""Readers of checkpoint containers; none of them imports or calls anything a file names."""
