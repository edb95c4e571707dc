"""``python -m cog.models`` is ``python -m cog models``."""

import runpy

runpy.run_module("cog.commands.models", run_name="__main__")
