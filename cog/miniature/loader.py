"""The model file of the miniature, an example of a file that users write for their own networks.

The toolkit uses the file with ``--model_loader <this file>:load_my_model``.
"""

from pathlib import Path

import torch

from cog.miniature.network import ConvNet


def load_my_model(init_args):
    """Return the network of a checkpoint and the function that computes its features.

    Args:
        init_args: dict with ``model_name``, ``ckpt_file`` (may be None) and ``model_dir``.

    Returns:
        The module, and a function from images (B, 3, H, W) to features (B, 128).
    """
    ckpt_file = init_args["ckpt_file"] or Path(init_args["model_dir"]) / "model.ckpt"
    checkpoint = torch.load(ckpt_file, map_location="cpu", weights_only=True)
    model = ConvNet(n_classes=len(checkpoint["classes"]))
    model.load_state_dict(checkpoint["state_dict"])
    model.eval()
    return model, model.forward_features
