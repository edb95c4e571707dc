"""Parameter names of other frameworks, in terms of torchvision's names.

Each function takes a state dict (name -> tensor or numpy array) and the network, and returns one with the
network's names. Unknown names are kept, so that loading reports them as unexpected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_DEPTHS = (3, 4, 6, 3)  # blocks per stage of ResNet-50


def _resnet50_layers() -> Iterator[tuple[str, str]]:
    """Yield ``(convolution, batch norm)`` in the order in which TensorFlow created them.

    The shortcut of each stage's first block comes before the block's own layers.
    """
    yield "conv1", "bn1"
    for stage, depth in enumerate(_DEPTHS, start=1):
        for block in range(depth):
            block_name = f"layer{stage}.{block}"
            if block == 0:
                yield f"{block_name}.downsample.0", f"{block_name}.downsample.1"
            for layer in (1, 2, 3):
                yield f"{block_name}.conv{layer}", f"{block_name}.bn{layer}"


def _numbered(name: str, index: int) -> str:
    return f"{name}_{index}" if index else name


def _tensor(array: np.ndarray, shape: str = "") -> torch.Tensor:
    """Copy an array into a tensor; ``shape``: "hwio" transposes a kernel, "flat" flattens."""
    if shape == "hwio" and array.ndim == 4:
        array = array.transpose(3, 2, 0, 1)
    elif shape == "flat":
        array = array.reshape(-1)
    return torch.from_numpy(np.array(array, order="C"))


def simclr_tensorflow(state: dict[str, Any], network: Any) -> dict[str, Any]:
    """Rename SimCLR-v2's entries below ``base_model/``: layers are numbered as they were created."""
    names: dict[str, tuple[str, str]] = {}
    for index, (conv, norm) in enumerate(_resnet50_layers()):
        names[_numbered("conv2d", index) + "/kernel"] = (f"{conv}.weight", "hwio")
        for theirs, ours in (
            ("gamma", "weight"),
            ("beta", "bias"),
            ("moving_mean", "running_mean"),
            ("moving_variance", "running_var"),
        ):
            names[f"{_numbered('batch_normalization', index)}/{theirs}"] = (f"{norm}.{ours}", "flat")
    renamed = {}
    for name, array in state.items():
        ours, shape = names.get(name, (name, ""))
        if not name.endswith("/Momentum"):
            renamed[ours] = _tensor(array, shape)
    return renamed


_HAIKU_MODULE = re.compile(
    r"res_net50/~/(?:block_group_(?P<group>\d)/~/block_(?P<block>\d)/~/)?"
    r"(?P<place>initial|shortcut)?_?(?P<kind>conv|batchnorm)(?:_(?P<index>\d))?"
)
_HAIKU_LEAVES = {
    "w": ("weight", "hwio"),
    "scale": ("weight", "flat"),
    "offset": ("bias", "flat"),
    "~/mean_ema/average": ("running_mean", "flat"),
    "~/var_ema/average": ("running_var", "flat"),
}


def byol_haiku(state: dict[str, Any], network: Any) -> dict[str, Any]:
    """Rename BYOL's entries, ``params/<module>/<leaf>`` and ``state/<module>/~/mean_ema/average``.

    Evaluation uses the entry "average" of the moving averages' state; the entries "hidden" and "counter" only
    serve to update it.
    """
    renamed = {}
    for name, array in state.items():
        if re.search(r"/~/(mean|var)_ema/(hidden|counter)$", name):
            continue
        module, _, leaf = name.partition("/")[2].rpartition("/")
        if not module.startswith("res_net50/"):
            continue  # a head
        if leaf == "average":
            module, _, owner = module.rpartition("/~/")
            leaf = f"~/{owner}/average"
        match = _HAIKU_MODULE.fullmatch(module)
        if match is None or leaf not in _HAIKU_LEAVES:
            renamed[name] = _tensor(array)
            continue
        ours, shape = _HAIKU_LEAVES[leaf]
        renamed[f"{_haiku_layer(match)}.{ours}"] = _tensor(array, shape)
    return renamed


def _haiku_layer(match: re.Match[str]) -> str:
    kind = "conv" if match["kind"] == "conv" else "bn"
    if match["place"] == "initial":
        return f"{kind}1"
    block_name = f"layer{int(match['group'] or 0) + 1}.{match['block']}"
    if match["place"] == "shortcut":
        return f"{block_name}.downsample.{0 if kind == 'conv' else 1}"
    return f"{block_name}.{kind}{int(match['index'] or 0) + 1}"


def clip_timm(state: dict[str, Any], network: Any) -> dict[str, Any]:
    """Rename the entries of OpenAI's RN50, below ``visual.``, as timm does."""
    from timm.models.byobnet import checkpoint_filter_fn

    return checkpoint_filter_fn({f"visual.{name}": value for name, value in state.items()}, network)


_PYCLS_OUTSIDE = {
    "stem.conv": "conv_stem",
    "stem.bn": "bn1",
    "head.conv": "conv_head",
    "head.conv_bn": "bn2",
    "head.fc": "classifier",
}
_PYCLS_BLOCK = {
    "exp": "conv_pw",
    "exp_bn": "bn1",
    "dwise": "conv_dw",
    "dwise_bn": "bn2",
    "lin_proj": "conv_pwl",
    "lin_proj_bn": "bn3",
    "se.f_ex.0": "se.conv_reduce",
    "se.f_ex.2": "se.conv_expand",
}
#: Blocks of the first stage have no expansion.
_PYCLS_FIRST = {"dwise_bn": "bn1", "lin_proj": "conv_pw", "lin_proj_bn": "bn2"}


def pycls_timm(state: dict[str, Any], network: Any) -> dict[str, Any]:
    """Rename pycls' entries of an EfficientNet to timm's.

    pycls reads images with OpenCV, so its weights expect BGR; the channels of the first convolution are
    reversed, which is the same as reversing those of the images.
    """
    renamed = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        match = re.fullmatch(r"s(\d)\.b(\d+)\.(.+)", module)
        if match:
            stage, block, layer = int(match[1]) - 1, int(match[2]) - 1, match[3]
            layers = _PYCLS_BLOCK if stage else _PYCLS_BLOCK | _PYCLS_FIRST
            module = f"blocks.{stage}.{block}.{layers.get(layer, layer)}"
        renamed[f"{_PYCLS_OUTSIDE.get(module, module)}.{leaf}"] = (
            value.flip(1) if module == "stem.conv" and value.ndim == 4 else value
        )
    return renamed
