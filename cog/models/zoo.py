"""The models of the paper under their earlier name."""

from __future__ import annotations

from cog.models.paper_models import MODELS, list_models

__all__ = ["MODELS", "list_models"]
