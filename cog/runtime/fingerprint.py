"""Former place of parts of :mod:`cog.runtime.output` and :mod:`cog.runtime.files`."""

from cog.runtime.files import plain as plain
from cog.runtime.output import differences as differences
