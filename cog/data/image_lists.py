"""Other name of :mod:`cog.data.images`, for modules that still use it."""

from cog.data.images import ImageList, from_class_folders

__all__ = ["ImageList", "from_class_folders"]
