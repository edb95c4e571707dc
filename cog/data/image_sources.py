"""Other name of :mod:`cog.data.datasets`, for modules that still use it."""

from cog.data.datasets import ImageSources, count_differences

__all__ = ["ImageSources", "count_differences"]
