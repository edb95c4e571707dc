"""The models, one row each. To add one: write its row here (and, if the row cannot say how to load
it, a loader function ``load_my_model(init_args)`` that the row names).
"""

from __future__ import annotations

import difflib

from cog.errors import CogError
from cog.models.spec import ModelSpec, Preprocess, Unwrap

MODELS: dict[str, ModelSpec] = {}


def register(spec: ModelSpec) -> ModelSpec:
    """Add a model.

    Raises:
        CogError: when the name is taken.
    """
    if spec.name in MODELS:
        raise CogError(f"model {spec.name} is declared twice")
    MODELS[spec.name] = spec
    return spec


def list_models(category: str | None = None) -> list[str]:
    """Return the names of all models, or of one category, in the paper's order."""
    return [name for name, spec in MODELS.items() if category in (None, spec.category)]


def get_spec(name: str) -> ModelSpec:
    """Return a model's declaration.

    Raises:
        CogError: when there is none; the message says what exists.
    """
    if name in MODELS:
        return MODELS[name]
    near = difflib.get_close_matches(name, MODELS, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known models: {', '.join(MODELS)}."
    raise CogError(
        f"--model {name!r} is not known; {hint} For a model of your own, give its loader with "
        "--model_loader FILE.py:load_my_model"
    )


def _torchvision(
    name: str,
    *,
    label: str,
    paper: str,
    url: str,
    arch: str = "resnet50",
    category: str = "architecture",
    feature_dim: int = 2048,
    head: str = "fc",
    prepare: str = "prepare_sup.sh",
    preprocess: Preprocess = Preprocess(),  # noqa: B008 (frozen)
    note: str = "",
    **arch_args: object,
) -> None:
    """A bare state dict with torchvision's parameter names."""
    register(
        ModelSpec(
            name=name,
            label=label,
            category=category,
            feature_dim=feature_dim,
            arch=f"torchvision.models:{arch}",
            arch_args=arch_args,
            head=head,
            unwrap=Unwrap(drop=(f"{head}.",)),
            preprocess=preprocess,
            paper=paper,
            prepare=prepare,
            url=url,
            # torchvision's file names end in the first digits of the file's SHA-256
            sha256_prefix=url.rsplit("-", 1)[1].split(".")[0],
            note=note,
        )
    )


_RESNET = "Deep Residual Learning for Image Recognition"
_SEMI = "Billion-scale semi-supervised learning for image classification"
_TORCH_FILES = "https://download.pytorch.org/models/"
_SEMI_FILES = "https://dl.fbaipublicfiles.com/semiweaksupervision/model_files/"

# torchvision's V1 weights. The files the paper's authors named (resnet50-19c8e357, resnet152-b121ed2d,
# inception_v3_google-1a9a5a14) are in torch 0.1's container, which cannot be read safely; torchvision
# released the same tensors again under the names below.
_torchvision(
    "sup_resnet50",
    label="ResNet50",
    category="reference",
    paper=_RESNET,
    url=_TORCH_FILES + "resnet50-0676ba61.pth",
    note="torchvision's V1 weights; V2 is another training run",
)
_torchvision(
    "sup_resnet152",
    label="a-ResNet152",
    arch="resnet152",
    paper=_RESNET,
    url=_TORCH_FILES + "resnet152-394f9c45.pth",
)
_torchvision(
    "sup_inception-v3",
    label="a-Inception-v3",
    arch="inception_v3",
    paper="Rethinking the Inception Architecture for Computer Vision",
    url=_TORCH_FILES + "inception_v3_google-0cc3c7bd.pth",
    # The weights expect (x - 0.5) / 0.5: torchvision converts inside (transform_input) when it loads them.
    # The original toolkit normalised with ImageNet's statistics and skipped the conversion, which
    # feeds the network a wrongly scaled image; here the input is what the weights were trained on.
    preprocess=Preprocess(resize=299, crop=299, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    init_weights=False,
    aux_logits=True,
    transform_input=False,
    note="input scaled to [-1, 1] as the weights expect; 299 pixels",
)
_torchvision(
    "sup_vgg19",
    label="a-VGG19",
    arch="vgg19_bn",
    feature_dim=4096,
    head="classifier.6",
    paper="Very Deep Convolutional Networks for Large-Scale Image Recognition",
    url=_TORCH_FILES + "vgg19_bn-c79401a0.pth",
    note="with batch normalisation; the feature is fc7 after its ReLU",
)
_torchvision(
    "ssup_resnet50",
    label="d-Semi-Sup",
    category="web-data",
    paper=_SEMI,
    prepare="prepare_swsup.sh",
    url=_SEMI_FILES + "semi_supervised_resnet50-08389792.pth",
)
_torchvision(
    "swsup_resnet50",
    label="d-Semi-Weakly-Sup",
    category="web-data",
    paper=_SEMI,
    prepare="prepare_swsup.sh",
    url=_SEMI_FILES + "semi_weakly_supervised_resnet50-16a12f1b.pth",
)
