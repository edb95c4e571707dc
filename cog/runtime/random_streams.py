"""Former place of :mod:`cog.runtime.seeds`."""

from cog.runtime.seeds import *  # noqa: F403
