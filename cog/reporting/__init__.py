"""Presentation of results: tables, figures, the report page and results in notebooks."""

from __future__ import annotations

import cog.results.analysis_metrics  # noqa: F401 - it declares the metrics of analyses
