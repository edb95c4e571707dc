"""Former place of a part of :mod:`cog.runtime.log`."""

from cog.runtime.log import Progress as Progress
from cog.runtime.log import duration as duration
from cog.runtime.log import size as size
