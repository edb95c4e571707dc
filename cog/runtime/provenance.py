"""Former place of a part of :mod:`cog.runtime.log`."""

from cog.runtime.log import log_file as log_file
from cog.runtime.log import now as now
from cog.runtime.log import versions as versions
