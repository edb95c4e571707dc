"""ImageNet-CoG: how well does a frozen visual representation separate concepts it has never seen?

Protocol: Sariyildiz, Kalantidis, Larlus, Alahari, "Concept Generalization in Visual Representation
Learning", ICCV 2021. The scripts are thin; their work can be called from Python:

>>> import cog
>>> backbone = cog.load_backbone("sup_resnet50", "model.ckpt")  # doctest: +SKIP
>>> "sup_resnet50" in cog.list_models()
True
>>> scores = cog.evaluate(backbone, "birds/train", "birds/test", n_shot=[0, 8])  # doctest: +SKIP
>>> print(cog.table(cog.average(cog.read_results("models"))))  # doctest: +SKIP
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CogError": "cog.errors",
    "average": "cog.results.frame",
    "evaluate": "cog.logreg.notebook",
    "extract_features": "cog.features.extract",
    "list_models": "cog.models.paper_models",
    "load_backbone": "cog.models.choice",
    "read_results": "cog.results.read",
    "table": "cog.reporting.render",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported on first use: `import cog` must not cost an import of torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'cog' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*_HOMES, "__version__"]
