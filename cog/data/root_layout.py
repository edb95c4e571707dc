"""Other name of :mod:`cog.data.images`, for modules that still use it."""

from cog.data.images import hint, open_store

__all__ = ["hint", "open_store"]
