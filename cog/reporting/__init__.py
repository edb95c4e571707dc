"""Views of records and nothing else: tables, figures and the report page."""

from __future__ import annotations

import cog.analysis.registry  # noqa: F401 - analyses declare their metrics where they compute them
