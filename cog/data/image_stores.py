"""Other name of :mod:`cog.data.stores`, for modules that still use it."""

from cog.data.classes import IMAGE_SUFFIXES
from cog.data.stores import FolderImages, ImageStore

__all__ = ["IMAGE_SUFFIXES", "FolderImages", "ImageStore"]
