"""The models of the paper, one row each. A new model is a new row here; the tests cover every row.

The place of the weights in a file is that of the authors' own code.
"""

from __future__ import annotations

from typing import Any

from cog.models.spec import PaperModel

MODELS: dict[str, PaperModel] = {}


def _add(name: str, label: str, paper: str, url: str, **fields: Any) -> None:
    assert name not in MODELS
    MODELS[name] = PaperModel(name, label, paper, url, **fields)


def list_models(category: str | None = None) -> list[str]:
    """Return the names of all models, or of one category, in the paper's order; other models come last."""
    return [name for name, spec in MODELS.items() if category in (None, spec.category)]


def pretraining(name: str) -> str:
    """Return the pretraining data of a model by name: that of its row, else "unknown"."""
    return MODELS[name].pretraining if name in MODELS else "unknown"


_TORCH = "https://download.pytorch.org/models/"
_FB = "https://dl.fbaipublicfiles.com/"
_DROPBOX = "https://www.dropbox.com/"
_GOOGLE = "https://storage.googleapis.com/"
_NAVER = "https://download.europe.naverlabs.com/ComputerVision/"

# ---- reference --------------------------------------------------------------------------------------
# torchvision's V1 weights. The files that the original toolkit names (19c8e357, b121ed2d, 1a9a5a14) are of
# torch 0.1 and 0.2; torchvision released the same tensors again under the names below.
_add(
    "sup_resnet50",
    "ResNet50",
    "Deep Residual Learning for Image Recognition",
    _TORCH + "resnet50-0676ba61.pth",
    license="BSD-3-Clause",
    note="torchvision's V1 weights; V2 is another training run",
    top1=76.13,
)

# ---- architecture -----------------------------------------------------------------------------------
_add(
    "sup_resnet152",
    "a-ResNet152",
    "Deep Residual Learning for Image Recognition",
    _TORCH + "resnet152-394f9c45.pth",
    network="torchvision:resnet152",
    license="BSD-3-Clause",
    note="torchvision's V1 weights",
    top1=78.31,
    comparable=False,
)
_add(
    "sup_inception-v3",
    "a-Inception-v3",
    "Rethinking the Inception Architecture for Computer Vision",
    _TORCH + "inception_v3_google-0cc3c7bd.pth",
    network="torchvision:inception_v3",
    drop=("AuxLogits.",),
    license="BSD-3-Clause",
    note="input scaled to [-1, 1] as the weights expect, while the original toolkit's code feeds "
    "ImageNet's mean and standard deviation; the paper's 25.1M include the auxiliary classifier "
    "(3.3M), which no feature passes through",
    # The weights expect (x - 0.5) / 0.5: torchvision converts inside (transform_input) when it loads them.
    # The original toolkit normalized with ImageNet's statistics and skipped the conversion.
    size=299,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    top1=77.29,
    authors=(342, 299, "bilinear"),
)
_add(
    "sup_vgg19",
    "a-VGG19",
    "Very Deep Convolutional Networks for Large-Scale Image Recognition",
    _TORCH + "vgg19_bn-c79401a0.pth",
    network="torchvision:vgg19_bn",
    dim=4096,
    head=("classifier.6",),
    license="BSD-3-Clause",
    note="with batch normalization; the feature is fc7 after its ReLU",
    top1=74.22,
    comparable=False,
)


def _deit(name: str, label: str, file: str, dim: int, top1: float, **fields: Any) -> None:
    size, distilled = int(file[-16:-13]), "distilled" in name
    _add(
        name,
        label,
        "Training data-efficient image transformers & distillation through attention",
        f"{_FB}deit/{file}",
        network=f"timm:{file.rpartition('-')[0]}",
        dim=dim,
        head=("head", "head_dist") if distilled else ("head",),
        class_token=True,
        size=size,
        top1=top1,
        authors=(size * 256 // 224, size, "bicubic"),
        license="Apache-2.0",
        note="the feature is the class token after the final LayerNorm"
        + distilled * " (not its mean with the distillation token)",
        **fields,
    )


_deit("deit_small", "a-DeiT-S", "deit_small_patch16_224-cd65a155.pth", 384, 79.9)
_distilled = "deit_small_distilled_patch16_224-649709d9.pth"
_deit("deit_small_distilled", "a-DeiT-S-distilled", _distilled, 384, 81.2)
_distilled = "deit_base_distilled_patch16_384-d0272ac0.pth"
_deit("deit_base_distilled_384", "a-DeiT-B-distilled", _distilled, 768, 85.2, comparable=False)
_add(
    "nat_m4",
    "a-NAT-M4",
    "Neural Architecture Transfer",
    # The only known copy, on the author's own site.
    "https://www.zhichaolu.com/assets/neural-architecture-transfer/pretrained/imagenet/"
    "net-img@240-flops@600-top1@80.5/net.weights",
    network="cog:NatM4",
    dim=1536,
    head=("classifier.linear",),
    note="the feature is the output of the last 1x1 layer after its mish; 224 pixels as in the paper, "
    "although the network's own configuration says 240",
    top1=80.5,
    authors=(274, 240, "bicubic"),
    comparable=False,
)


def _efficientnet(version: str, number: int, dim: int, size: int, top1: float) -> None:
    _add(
        f"efficientnet_{version.lower()}",
        f"a-EfficientNet-{version}",
        "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
        f"{_FB}pycls/dds_baselines/{number}/EN-{version}_dds_8gpu.pyth",
        network=f"timm:efficientnet_{version.lower()}",
        dim=dim,
        head=("classifier",),
        key="model_state",
        rename="pycls_timm",
        size=size,
        top1=top1,
        # pycls resizes with OpenCV, whose interpolation does not antialias
        authors=(size * 256 // 224, size, "bilinear"),
        license="MIT",
        comparable=False,
        note="pycls' training, not TensorFlow's; the channels of the first convolution are reversed (BGR)",
    )


_efficientnet("B1", 161304979, 1280, 240, 75.9)
_efficientnet("B4", 161305098, 1792, 380, 78.6)
_add(
    "t2tvit_t14",
    "a-T2T-ViT-t-14",
    "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet",
    "https://github.com/yitu-opensource/T2T-ViT/releases/download/main/81.7_T2T_ViTt_14.pth.tar",
    network="cog:T2TViT",
    dim=384,
    head=("head",),
    class_token=True,
    license="BSD-3-Clause-Clear",
    note="moving average of the weights; the feature is the class token after the final LayerNorm; the "
    "fixed position embedding is not counted as parameters",
    top1=81.7,
    authors=(248, 224, "bicubic"),
)

# ---- self-supervision -------------------------------------------------------------------------------
_add(
    "simclrv2_resnet50",
    "s-SimCLR-v2",
    "Big Self-Supervised Models are Strong Semi-Supervised Learners",
    _GOOGLE + "simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0/model.ckpt-250228",
    network="cog:resnet50_same_pool",
    prefix="base_model/",
    license="Apache-2.0",
    note="a TensorFlow checkpoint in two files; input in [0, 1], not normalized, while the original "
    "toolkit's code feeds ImageNet's mean and standard deviation; max-pooling padded as in "
    "TensorFlow; not the moving average",
    rename="simclr_tensorflow",
    parts=(".data-00000-of-00001", ".index"),
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
)
_add(
    "byol_resnet50",
    "s-BYOL",
    "Bootstrap your own latent: A new approach to self-supervised Learning",
    _GOOGLE + "deepmind-byol/checkpoints/pretrain_res50x1.pkl",
    network="cog:resnet50_same",
    key="experiment_state",
    prefix="online_",
    license="CC-BY-NC-4.0 (the code: Apache-2.0)",
    note="online network; padded as in Haiku",
    rename="byol_haiku",
)
_add(
    "mocov2_resnet50",
    "s-MoCo-v2",
    "Momentum Contrast for Unsupervised Visual Representation Learning",
    _FB + "moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
    prefix="module.encoder_q.",
    license="CC-BY-NC-4.0 by the README, MIT by the LICENSE file since 2023",
    note="query encoder",
)
_add(
    "mochi_resnet50",
    "s-MoCHi",
    "Hard Negative Mixing for Contrastive Learning",
    _NAVER + "MOCHI_models/mochi_512_1024_512_e1000.pth.tar",
    prefix="module.encoder_q.",
    note="query encoder",
)
_add(
    "infomin_resnet50",
    "s-InfoMin",
    "What Makes for Good Views for Contrastive Learning?",
    _DROPBOX + "sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth?dl=1",
    prefix="module.encoder.",
    license="BSD-2-Clause",
    note="not the momentum model",
)
_add(
    "swav_resnet50",
    "s-SwAV",
    "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
    _FB + "deepcluster/swav_800ep_pretrain.pth.tar",
    prefix="module.",
    drop=("projection_head.", "prototypes."),
    license="CC-BY-NC-4.0",
)
_add(
    "dino_resnet50",
    "s-DINO",
    "Emerging Properties in Self-Supervised Vision Transformers",
    _FB + "dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth",
    license="Apache-2.0",
)
_add(
    "obow_resnet50",
    "s-OBoW",
    "Online Bag-of-Visual-Words Generation for Unsupervised Representation Learning",
    "https://github.com/valeoai/obow/releases/download/v0.1.0/"
    "ImageNetFull_ResNet50_OBoW_full_feature_extractor.zip",
    key="network",
    license="Apache-2.0 by the LICENSE file, MIT by the README",
    note="student network",
    member="tochvision_resnet50_student_K8192_epoch200.pth.tar",
)
_add(
    "barlow_resnet50",
    "s-BarlowTwins",
    "Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
    _FB + "barlowtwins/epochs1000_bs2048_lr0.2_lambd0.0051_proj_8192_8192_8192_scale0.024/resnet50.pth",
    license="CC-BY-NC-4.0 while this file was listed, MIT since July 2021",
    note="the first of three released checkpoints, the one the paper used; the authors' repository loads "
    "another one",
)
_add(
    "compress_resnet50",
    "s-CompReSS",
    "CompRess: Self-Supervised Learning by Compressing Representations",
    "https://drive.google.com/file/d/15rzzSkcedEuCE7Cm8yLXopA5PqHUQscb",
    license="MIT",
    note="student of a SimCLR ResNet-50 x4",
    browser=True,
)

# ---- regularization ---------------------------------------------------------------------------------
_add(
    "mixup_resnet50",
    "r-MixUp",
    "mixup: Beyond Empirical Risk Minimization",
    _DROPBOX + "sh/g64c8bda61n12if/AACyaTZnku_Sgibc9UvOSblNa?dl=0",
    license="MIT",
    browser=True,
    top1=77.42,
)
_add(
    "manifold-mixup_resnet50",
    "r-Manifold-MixUp",
    "Manifold Mixup: Better Representations by Interpolating Hidden States",
    _DROPBOX + "sh/bjardjje11pti0g/AABFGW0gNrNE8o8TqUf4-SYSa?dl=0",
    license="MIT",
    browser=True,
    top1=77.5,
)
_add(
    "cutmix_resnet50",
    "r-CutMix",
    "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features",
    _DROPBOX + "sh/w8dvfgdc3eirivf/AABnGcTO9wao9xVGWwqsXRala?dl=0",
    license="MIT",
    browser=True,
    top1=78.6,
)
_add(
    "relabel_resnet50",
    "r-ReLabel",
    "Re-labeling ImageNet: from Single to Multi-Labels, from Global to Localized Labels",
    _DROPBOX + "s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=1",
    license="Apache-2.0",
    top1=78.9,
)
_add(
    "advrobust_resnet50",
    "r-Adv-Robust",
    "Do Adversarially Robust ImageNet Models Transfer Better?",
    # Where the authors moved the file; the original link expired in 2021.
    "https://huggingface.co/madrylab/robust-imagenet-models/resolve/main/resnet50_l2_eps0.1.ckpt",
    prefix="module.model.",
    license="MIT",
    note="trained against L2 perturbations of size 0.1; the network's own input normalization is done "
    "outside",
    top1=74.78,
)
_add(
    "mealv2_resnet50",
    "r-MEAL-v2",
    "MEAL V2: Boosting Vanilla ResNet-50 to 80%+ Top-1 Accuracy on ImageNet without Tricks",
    "https://github.com/szq0214/MEAL-V2/releases/download/v1.0.0/MEALV2_ResNet50_224.pth",
    top1=80.67,
)

# ---- web data ---------------------------------------------------------------------------------------
_BILLION = "Billion-scale semi-supervised learning for image classification"
_add(
    "mopro_resnet50",
    "d-MoPro",
    "MoPro: Webly Supervised Learning with Momentum Prototypes",
    _GOOGLE + "sfr-pcl-data-research/MoPro_checkpoint/MoPro_V1_epoch90.tar",
    prefix="module.encoder_q.",
    drop=("classifier.", "fc1.", "fc2."),
    note="query encoder, trained on WebVision V1; the file is a torch file despite its ending",
    pretraining="web",
)
_add(
    "ssup_resnet50",
    "d-Semi-Sup",
    _BILLION,
    _FB + "semiweaksupervision/model_files/semi_supervised_resnet50-08389792.pth",
    license="CC-BY-NC-4.0",
    top1=79.3,
    pretraining="IN-1K + other",
)
_add(
    "swsup_resnet50",
    "d-Semi-Weakly-Sup",
    _BILLION,
    _FB + "semiweaksupervision/model_files/semi_weakly_supervised_resnet50-16a12f1b.pth",
    license="CC-BY-NC-4.0",
    top1=81.2,
    pretraining="IN-1K + other",
)


def _clip(name: str, label: str, **fields: Any) -> None:
    sha256 = "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762"
    _add(
        name,
        label,
        "Learning Transferable Visual Models From Natural Language Supervision",
        f"https://openaipublic.azureedge.net/clip/models/{sha256}/RN50.pt",
        prefix="visual.",
        rename="clip_timm",
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        license="MIT",
        pretraining="web",
        **fields,
    )


_clip(
    "clip_resnet50",
    "d-CLIP",
    network="timm:resnet50_clip",
    dim=1024,
    head=(),
    note="image tower only, in float32; 1024-d output of encode_image, as the original toolkit's code gives "
    "(the paper's Table 3 says 2048 for every ResNet: that is clip_resnet50-trunk); the original toolkit's "
    "code feeds ImageNet's mean and standard deviation",
)

# ---- not in the paper -------------------------------------------------------------------------------
_clip(
    "clip_resnet50-trunk",
    "CLIP (trunk)",
    network="timm:resnet50_clip_gap",
    head=("head.fc",),
    comparable=False,
    note="2048-d global average of the last stage, without the attention pooling",
)
# Later models of the paper's authors, on IN-1K alone.
for _name, _label, _top1 in (("trex", "t-ReX", 78.0), ("trexstar", "t-ReX*", 80.2)):
    _add(
        f"{_name}_resnet50",
        _label,
        "No Reason for No Supervision: Improved Generalization in Supervised Models",
        f"{_NAVER}trex_models/{_name}.pth",
        license="CC-BY-NC-SA-4.0",
        comparable=False,
        note=f"the file holds no classifier (the authors report {_top1} % on IN-1K)",
    )
