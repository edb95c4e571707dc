"""Presentation of results: tables, figures, the report page and results in notebooks."""

from __future__ import annotations

import cog.analysis.registry  # noqa: F401 - the modules of the analyses declare their metrics
