"""Parameter names of authors' files, in terms of the network's names.

Each function takes a state dict (name -> tensor or numpy array) and the network, and returns one with the
network's names. Unknown names are kept, so that loading reports them as unexpected.
"""

import re
from typing import Any

import numpy as np
import torch
from timm.models.byobnet import checkpoint_filter_fn
from torch import nn

#: Names of the arrays of a convolution and of a batch normalization in TensorFlow and Haiku.
_LEAVES = {
    **dict.fromkeys(("kernel", "gamma", "w", "scale"), "weight"),
    **dict.fromkeys(("beta", "offset"), "bias"),
    **dict.fromkeys(("moving_mean", "~/mean_ema.average"), "running_mean"),
    **dict.fromkeys(("moving_variance", "~/var_ema.average"), "running_var"),
}


def _tensor(array: np.ndarray, leaf: str) -> torch.Tensor:
    """Copy a kernel (height, width, in, out) to (out, in, height, width), any other array to a vector."""
    is_kernel = leaf in ("kernel", "w") and array.ndim == 4
    array = array.transpose(3, 2, 0, 1) if is_kernel else array.reshape(-1)
    return torch.from_numpy(np.array(array, order="C"))


def simclr_tensorflow(state: dict[str, Any], network: nn.Module) -> dict[str, Any]:
    """Rename SimCLR-v2's arrays below ``base_model/``: layers are numbered as they were created.

    The shortcut of a stage's first block comes before the block's own layers.
    """
    modules: dict[str, str] = {}
    for kind, title in ((nn.Conv2d, "conv2d"), (nn.BatchNorm2d, "batch_normalization")):
        names = [name for name, module in network.named_modules() if isinstance(module, kind)]
        names.sort(key=lambda name: name.replace("downsample", "0"))
        modules |= {f"{title}_{n}" if n else title: name for n, name in enumerate(names)}
    renamed = {}
    for name, array in state.items():
        module, _, leaf = name.rpartition("/")
        if module in modules and leaf in _LEAVES:
            renamed[f"{modules[module]}.{_LEAVES[leaf]}"] = _tensor(array, leaf)
        elif leaf != "Momentum":
            renamed[name] = array
    return renamed


_HAIKU = re.compile(
    r"\w+\.res_net50/~/(?:block_group_(\d)/~/block_(\d)/~/)?(initial_|shortcut_)?(conv|batchnorm)(?:_(\d))?"
    r"[/.](w|scale|offset|~/(?:mean|var)_ema\.average)"
)


def byol_haiku(state: dict[str, Any], network: nn.Module) -> dict[str, Any]:
    """Rename BYOL's arrays, ``params.<module>.<leaf>`` and ``state.<module>/~/mean_ema.average``.

    Evaluation uses "average" of the moving averages; "hidden" and "counter" only serve to update it.
    """
    renamed = {}
    for name, array in state.items():
        if match := _HAIKU.fullmatch(name):
            stage, block, place, kind, index, leaf = match.groups()
            layer = f"{kind.replace('batchnorm', 'bn')}{int(index or 0) + 1}"
            if place == "shortcut_":
                layer = f"downsample.{int(kind == 'batchnorm')}"
            where = f"layer{int(stage) + 1}.{block}." if stage else ""
            renamed[f"{where}{layer}.{_LEAVES[leaf]}"] = _tensor(array, leaf)
        elif ".res_net50/" in name and not name.endswith((".hidden", ".counter")):  # not a head's
            renamed[name] = array
    return renamed


def clip_timm(state: dict[str, Any], network: Any) -> dict[str, Any]:
    """Rename the parameters of OpenAI's RN50, below ``visual.``, as timm does."""
    return checkpoint_filter_fn({f"visual.{name}": value for name, value in state.items()}, network)


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


_PYCLS = _pairs("stem.conv:conv_stem stem.bn:bn1 head.conv:conv_head head.conv_bn:bn2 head.fc:classifier")
_PYCLS_BLOCK = _pairs(
    "exp:conv_pw exp_bn:bn1 dwise:conv_dw dwise_bn:bn2 lin_proj:conv_pwl lin_proj_bn:bn3 "
    "se.f_ex.0:se.conv_reduce se.f_ex.2:se.conv_expand"
)
#: Blocks of the first stage have no expansion.
_PYCLS_FIRST = _PYCLS_BLOCK | _pairs("dwise_bn:bn1 lin_proj:conv_pw lin_proj_bn:bn2")


def pycls_timm(state: dict[str, Any], network: nn.Module) -> dict[str, Any]:
    """Rename pycls' parameters of an EfficientNet to timm's.

    pycls reads images with OpenCV, so its weights expect BGR; the channels of the first convolution are
    reversed, which is the same as reversing those of the images.
    """
    renamed = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        if match := re.fullmatch(r"s(\d)\.b(\d+)\.(.+)", module):
            stage, block, layer = int(match[1]) - 1, int(match[2]) - 1, match[3]
            layers = _PYCLS_BLOCK if stage else _PYCLS_FIRST
            module = f"blocks.{stage}.{block}.{layers.get(layer, layer)}"
        flipped = module == "stem.conv" and value.ndim == 4
        renamed[f"{_PYCLS.get(module, module)}.{leaf}"] = value.flip(1) if flipped else value
    return renamed
