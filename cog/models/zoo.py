"""The models, one row each. A new model is a new row here; the tests cover every row.

The place of the weights in a file is that of the authors' own code. Parameter counts are without classifier, as in the
paper's table of models; a row's note explains a difference from that table.
"""

from __future__ import annotations

from typing import Any

from cog.errors import CogError, nearest
from cog.models.spec import PaperModel, Preprocess, Published

MODELS: dict[str, PaperModel] = {}


def declare(name: str, label: str, category: str, paper: str, **fields: Any) -> None:
    """Add a model; ``fields`` are those of :class:`PaperModel`.

    Raises:
        CogError: the name is taken.
    """
    if name in MODELS:
        raise CogError(f"model {name} is declared twice")
    MODELS[name] = PaperModel(name, label, category, paper, **fields)


def list_models(category: str | None = None) -> list[str]:
    """Return the names of all models, or of one category, in the paper's order; other models come last."""
    return [name for name, spec in MODELS.items() if category in (None, spec.category)]


def get_spec(name: str) -> PaperModel:
    """Return a model's declaration.

    Raises:
        CogError: an unknown model; the message names similar models.
    """
    if name in MODELS:
        return MODELS[name]
    near = nearest(name, MODELS, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`python -m cog.models list` lists the paper's."
    raise CogError(
        f"--model {name!r} is not known; {hint} Models of libraries are named timm_<name>, hf_<organization>--<name>, "
        "... (docs/own-models.md); for one of your own, give its loader with --model_loader FILE.py:load_my_model"
    )


# ---- hosts ------------------------------------------------------------------------------------------
_TORCH = "https://download.pytorch.org/models/"
_FB = "https://dl.fbaipublicfiles.com/"
_DROPBOX = "https://www.dropbox.com/"
_NAVER = "https://download.europe.naverlabs.com/ComputerVision/"


# ---- families ---------------------------------------------------------------------------------------
def _resnet50(name: str, label: str, category: str, paper: str, **fields: Any) -> None:
    """Declare a ResNet-50 with stride in the 3x3 convolutions; the feature is the global average pool."""
    fields = {
        "network": "torchvision.models:resnet50",
        "comparable": True,
        "paper_parameters": 23.5,
        **fields,
    }
    declare(name, label, category, paper, feature_dim=2048, parameters=23_508_032, **fields)


def _deit(name: str, label: str, *, dim: int, size: int, file: str, top1: float, **fields: Any) -> None:
    distilled = "distilled" in name
    mean = " (not its mean with the distillation token)" if distilled else ""
    declare(
        name,
        label,
        "architecture",
        "Training data-efficient image transformers & distillation through attention",
        network="timm:create_model",
        args={"model_name": file.rpartition("-")[0]},
        feature_dim=dim,
        head=("head", "head_dist") if distilled else ("head",),
        class_token=True,
        preprocess=Preprocess(resize=size, crop=size),
        published=Published(top1, resize=size * 256 // 224, crop=size, interpolation="bicubic"),
        url=f"{_FB}deit/{file}",
        sha256=file[-12:-4],
        license="Apache-2.0",
        note=f"the feature is the class token after the final LayerNorm{mean}",
        **fields,
    )


def _efficientnet(
    name: str, label: str, *, size: int, file: str, published: Published, **fields: Any
) -> None:
    # pycls resizes with OpenCV, whose bilinear interpolation does not antialias.
    declare(
        name,
        label,
        "architecture",
        "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
        network="timm:create_model",
        args={"model_name": name},
        head=("classifier",),
        key="model_state",
        rename="cog.models.rename:pycls_timm",
        preprocess=Preprocess(resize=size, crop=size),
        published=published,
        url=f"{_FB}pycls/dds_baselines/{file}",
        license="MIT",
        note="pycls' training, not TensorFlow's; the channels of the first convolution are reversed (BGR)",
        **fields,
    )


# ---- reference --------------------------------------------------------------------------------------
# torchvision's V1 weights; V2 is another training run. The files that the original toolkit names
# (19c8e357, b121ed2d, 1a9a5a14) are of torch 0.1 and 0.2; torchvision released the same tensors again
# under the names below.
_resnet50(
    "sup_resnet50",
    "ResNet50",
    "reference",
    "Deep Residual Learning for Image Recognition",
    published=Published(76.13),
    url=_TORCH + "resnet50-0676ba61.pth",
    sha256="0676ba61",
    license="BSD-3-Clause",
    note="torchvision's V1 weights; V2 is another training run",
)

# ---- architecture -----------------------------------------------------------------------------------
declare(
    "sup_resnet152",
    "a-ResNet152",
    "architecture",
    "Deep Residual Learning for Image Recognition",
    network="torchvision.models:resnet152",
    feature_dim=2048,
    parameters=58_143_808,
    paper_parameters=58.1,
    published=Published(78.31),
    url=_TORCH + "resnet152-394f9c45.pth",
    sha256="394f9c45",
    license="BSD-3-Clause",
    note="torchvision's V1 weights",
)
declare(
    "sup_inception-v3",
    "a-Inception-v3",
    "architecture",
    "Rethinking the Inception Architecture for Computer Vision",
    network="torchvision.models:inception_v3",
    args={"init_weights": False, "aux_logits": False, "transform_input": False},
    feature_dim=2048,
    parameters=21_785_568,
    comparable=True,
    paper_parameters=25.1,
    drop=("AuxLogits.",),
    # The weights expect (x - 0.5) / 0.5: torchvision converts inside (transform_input) when it loads
    # them. The original toolkit normalized with ImageNet's statistics and skipped the conversion.
    preprocess=Preprocess(resize=299, crop=299, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    published=Published(77.29, resize=342, crop=299),
    url=_TORCH + "inception_v3_google-0cc3c7bd.pth",
    sha256="0cc3c7bd",
    license="BSD-3-Clause",
    note="input scaled to [-1, 1] as the weights expect, while the original toolkit's code feeds ImageNet's mean and "
    "standard deviation; the paper's 25.1M include the auxiliary classifier (3.3M), which no feature passes through",
)
declare(
    "sup_vgg19",
    "a-VGG19",
    "architecture",
    "Very Deep Convolutional Networks for Large-Scale Image Recognition",
    network="torchvision.models:vgg19_bn",
    feature_dim=4096,
    parameters=139_581_248,
    paper_parameters=139.6,
    head=("classifier.6",),
    published=Published(74.22),
    url=_TORCH + "vgg19_bn-c79401a0.pth",
    sha256="c79401a0",
    license="BSD-3-Clause",
    note="with batch normalization; the feature is fc7 after its ReLU",
)
_deit(
    "deit_small",
    "a-DeiT-S",
    dim=384,
    size=224,
    comparable=True,
    parameters=21_665_664,
    paper_parameters=21.7,
    top1=79.9,
    file="deit_small_patch16_224-cd65a155.pth",
)
_deit(
    "deit_small_distilled",
    "a-DeiT-S-distilled",
    dim=384,
    size=224,
    comparable=True,
    parameters=21_666_432,
    paper_parameters=21.7,
    top1=81.2,
    file="deit_small_distilled_patch16_224-649709d9.pth",
)
_deit(
    "deit_base_distilled_384",
    "a-DeiT-B-distilled",
    dim=768,
    size=384,
    parameters=86_092_032,
    paper_parameters=86.1,
    top1=85.2,
    file="deit_base_distilled_patch16_384-d0272ac0.pth",
)
declare(
    "nat_m4",
    "a-NAT-M4",
    "architecture",
    "Neural Architecture Transfer",
    network="cog.models.networks:NATM4",
    feature_dim=1536,
    parameters=7_598_928,
    paper_parameters=7.6,
    head=("classifier.linear",),
    published=Published(80.5, resize=274, crop=240, interpolation="bicubic"),
    # The only known copy, on the author's own site.
    url="https://www.zhichaolu.com/assets/neural-architecture-transfer/pretrained/imagenet/"
    "net-img@240-flops@600-top1@80.5/net.weights",
    note="the feature is the output of the last 1x1 layer after its mish; 224 pixels as in the paper, although "
    "the network's own configuration says 240",
)
_efficientnet(
    "efficientnet_b1",
    "a-EfficientNet-B1",
    feature_dim=1280,
    parameters=6_513_184,
    paper_parameters=6.5,
    size=240,
    file="161304979/EN-B1_dds_8gpu.pyth",
    published=Published(75.9, resize=274, crop=240),
)
_efficientnet(
    "efficientnet_b4",
    "a-EfficientNet-B4",
    feature_dim=1792,
    parameters=17_548_616,
    paper_parameters=17.5,
    size=380,
    file="161305098/EN-B4_dds_8gpu.pyth",
    published=Published(78.6, resize=434, crop=380),
)
declare(
    "t2tvit_t14",
    "a-T2T-ViT-t-14",
    "architecture",
    "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet",
    network="cog.models.networks:T2TViT",
    class_token=True,
    feature_dim=384,
    parameters=21_080_422,
    comparable=True,
    paper_parameters=21.1,
    head=("head",),
    published=Published(81.7, resize=248, crop=224, interpolation="bicubic"),
    url="https://github.com/yitu-opensource/T2T-ViT/releases/download/main/81.7_T2T_ViTt_14.pth.tar",
    license="BSD-3-Clause-Clear",
    note="moving average of the weights; the feature is the class token after the final LayerNorm; the fixed "
    "position embedding is not counted as parameters",
)

# ---- self-supervision -------------------------------------------------------------------------------
_resnet50(
    "simclrv2_resnet50",
    "s-SimCLR-v2",
    "self-supervision",
    "Big Self-Supervised Models are Strong Semi-Supervised Learners",
    network="cog.models.networks:resnet50_same",
    args={"convolutions": False},
    prefix="base_model/",
    rename="cog.models.rename:simclr_tensorflow",
    preprocess=Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    url="https://storage.googleapis.com/simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0/model.ckpt-250228",
    parts=(".data-00000-of-00001", ".index"),
    license="Apache-2.0",
    note="a TensorFlow checkpoint in two files; input in [0, 1], not normalized, while the original toolkit's code "
    "feeds ImageNet's mean and standard deviation; max-pooling padded as in TensorFlow; not the moving average",
)
_resnet50(
    "byol_resnet50",
    "s-BYOL",
    "self-supervision",
    "Bootstrap your own latent: A new approach to self-supervised Learning",
    network="cog.models.networks:resnet50_same",
    args={"convolutions": True},
    key="experiment_state",
    prefix="online_",
    drop=tuple(
        f"{part}/{module}/"
        for part in ("params", "state")
        for module in ("projector", "predictor", "classifier")
    ),
    rename="cog.models.rename:byol_haiku",
    url="https://storage.googleapis.com/deepmind-byol/checkpoints/pretrain_res50x1.pkl",
    license="CC-BY-NC-4.0 (the code: Apache-2.0)",
    note="online network; padded as in Haiku",
)
_resnet50(
    "mocov2_resnet50",
    "s-MoCo-v2",
    "self-supervision",
    "Momentum Contrast for Unsupervised Visual Representation Learning",
    prefix="module.encoder_q.",
    url=_FB + "moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
    license="CC-BY-NC-4.0 by the README, MIT by the LICENSE file since 2023",
    note="query encoder",
)
_resnet50(
    "mochi_resnet50",
    "s-MoCHi",
    "self-supervision",
    "Hard Negative Mixing for Contrastive Learning",
    prefix="module.encoder_q.",
    url=_NAVER + "MOCHI_models/mochi_512_1024_512_e1000.pth.tar",
    note="query encoder",
)
_resnet50(
    "infomin_resnet50",
    "s-InfoMin",
    "self-supervision",
    "What Makes for Good Views for Contrastive Learning?",
    prefix="module.encoder.",
    url=_DROPBOX + "sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth?dl=1",
    license="BSD-2-Clause",
    note="not the momentum model",
)
_resnet50(
    "swav_resnet50",
    "s-SwAV",
    "self-supervision",
    "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
    prefix="module.",
    drop=("projection_head.", "prototypes."),
    url=_FB + "deepcluster/swav_800ep_pretrain.pth.tar",
    license="CC-BY-NC-4.0",
)
_resnet50(
    "dino_resnet50",
    "s-DINO",
    "self-supervision",
    "Emerging Properties in Self-Supervised Vision Transformers",
    url=_FB + "dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth",
    license="Apache-2.0",
)
_resnet50(
    "obow_resnet50",
    "s-OBoW",
    "self-supervision",
    "Online Bag-of-Visual-Words Generation for Unsupervised Representation Learning",
    key="network",
    url="https://github.com/valeoai/obow/releases/download/v0.1.0/"
    "ImageNetFull_ResNet50_OBoW_full_feature_extractor.zip",
    member="ImageNetFull_ResNet50_OBoW_full_feature_extractor/"
    "tochvision_resnet50_student_K8192_epoch200.pth.tar",
    license="Apache-2.0 by the LICENSE file, MIT by the README",
    note="student network",
)
_resnet50(
    "barlow_resnet50",
    "s-BarlowTwins",
    "self-supervision",
    "Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
    url=_FB + "barlowtwins/epochs1000_bs2048_lr0.2_lambd0.0051_proj_8192_8192_8192_scale0.024/resnet50.pth",
    license="CC-BY-NC-4.0 while this file was listed, MIT since July 2021",
    note="the first of three released checkpoints, the one the paper used; the authors' repository loads another one",
)
_resnet50(
    "compress_resnet50",
    "s-CompReSS",
    "self-supervision",
    "CompRess: Self-Supervised Learning by Compressing Representations",
    prefix="module.",
    url="https://drive.google.com/file/d/15rzzSkcedEuCE7Cm8yLXopA5PqHUQscb",
    browser=True,
    license="MIT",
    note="student of a SimCLR ResNet-50 x4",
)

# ---- regularization ---------------------------------------------------------------------------------
# Classifiers trained with DataParallel.
_HIDDEN = "Manifold Mixup: Better Representations by Interpolating Hidden States"
_REGIONS = "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features"
for _name, _label, _paper, _folder, _top1 in (
    (
        "mixup",
        "MixUp",
        "mixup: Beyond Empirical Risk Minimization",
        "g64c8bda61n12if/AACyaTZnku_Sgibc9UvOSblNa",
        77.42,
    ),
    ("manifold-mixup", "Manifold-MixUp", _HIDDEN, "bjardjje11pti0g/AABFGW0gNrNE8o8TqUf4-SYSa", 77.50),
    ("cutmix", "CutMix", _REGIONS, "w8dvfgdc3eirivf/AABnGcTO9wao9xVGWwqsXRala", 78.60),
):
    _resnet50(
        f"{_name}_resnet50",
        f"r-{_label}",
        "regularization",
        _paper,
        prefix="module.",
        published=Published(_top1),
        url=f"{_DROPBOX}sh/{_folder}?dl=0",
        browser=True,
        license="MIT",
    )
_resnet50(
    "relabel_resnet50",
    "r-ReLabel",
    "regularization",
    "Re-labeling ImageNet: from Single to Multi-Labels, from Global to Localized Labels",
    prefix="module.",
    published=Published(78.9),
    url=_DROPBOX + "s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=1",
    license="Apache-2.0",
)
_resnet50(
    "advrobust_resnet50",
    "r-Adv-Robust",
    "regularization",
    "Do Adversarially Robust ImageNet Models Transfer Better?",
    prefix="module.model.",
    published=Published(74.78),
    # Where the authors moved the file; the original link expired in 2021.
    url="https://huggingface.co/madrylab/robust-imagenet-models/resolve/main/resnet50_l2_eps0.1.ckpt",
    license="MIT",
    note="trained against L2 perturbations of size 0.1; the network's own input normalization is done outside",
)
_resnet50(
    "mealv2_resnet50",
    "r-MEAL-v2",
    "regularization",
    "MEAL V2: Boosting Vanilla ResNet-50 to 80%+ Top-1 Accuracy on ImageNet without Tricks",
    prefix="module.",
    published=Published(80.67),
    url="https://github.com/szq0214/MEAL-V2/releases/download/v1.0.0/MEALV2_ResNet50_224.pth",
)

# ---- web data ---------------------------------------------------------------------------------------
_resnet50(
    "mopro_resnet50",
    "d-MoPro",
    "web-data",
    "MoPro: Webly Supervised Learning with Momentum Prototypes",
    prefix="module.encoder_q.",
    drop=("classifier.", "fc1.", "fc2."),
    url="https://storage.googleapis.com/sfr-pcl-data-research/MoPro_checkpoint/MoPro_V1_epoch90.tar",
    note="query encoder, trained on WebVision V1; the file is a torch file despite its ending",
    pretraining="web",
)
_resnet50(
    "ssup_resnet50",
    "d-Semi-Sup",
    "web-data",
    "Billion-scale semi-supervised learning for image classification",
    published=Published(79.3),
    url=_FB + "semiweaksupervision/model_files/semi_supervised_resnet50-08389792.pth",
    sha256="08389792",
    license="CC-BY-NC-4.0",
    pretraining="IN-1K + other",
)
_resnet50(
    "swsup_resnet50",
    "d-Semi-Weakly-Sup",
    "web-data",
    "Billion-scale semi-supervised learning for image classification",
    published=Published(81.2),
    url=_FB + "semiweaksupervision/model_files/semi_weakly_supervised_resnet50-16a12f1b.pth",
    sha256="16a12f1b",
    license="CC-BY-NC-4.0",
    pretraining="IN-1K + other",
)


def _clip(name: str, label: str, category: str, **fields: Any) -> None:
    sha256 = "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762"
    declare(
        name,
        label,
        category,
        "Learning Transferable Visual Models From Natural Language Supervision",
        network="timm:create_model",
        head=(),
        prefix="visual.",
        rename="cog.models.rename:clip_timm",
        preprocess=Preprocess(
            mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
        ),
        url=f"https://openaipublic.azureedge.net/clip/models/{sha256}/RN50.pt",
        sha256=sha256,
        license="MIT",
        pretraining="web",
        **fields,
    )


_clip(
    "clip_resnet50",
    "d-CLIP",
    "web-data",
    feature_dim=1024,
    args={"model_name": "resnet50_clip"},
    parameters=38_316_896,
    comparable=True,
    note="image tower only, in float32; 1024-d output of encode_image, as the original toolkit's code gives (the "
    "paper's Table 3 says 2048 for every ResNet: that is clip_resnet50-trunk); the original toolkit's code feeds "
    "ImageNet's mean and standard deviation",
)

# ---- not in the paper -------------------------------------------------------------------------------
_clip(
    "clip_resnet50-trunk",
    "CLIP (trunk)",
    "other",
    args={"model_name": "resnet50_clip_gap", "num_classes": 0},
    feature_dim=2048,
    parameters=23_527_264,
    note="2048-d global average of the last stage, without the attention pooling",
)
# Later models of the paper's authors, on IN-1K alone; no SHA-256 is published.
for _name, _label, _file, _top1 in (
    ("trex_resnet50", "t-ReX", "trex.pth", 78.0),
    ("trexstar_resnet50", "t-ReX*", "trexstar.pth", 80.2),
):
    _resnet50(
        _name,
        _label,
        "other",
        "No Reason for No Supervision: Improved Generalization in Supervised Models",
        comparable=False,
        paper_parameters=None,
        url=f"{_NAVER}trex_models/{_file}",
        license="CC-BY-NC-SA-4.0",
        note=f"the file holds no classifier (the authors report {_top1} % on IN-1K)",
    )
