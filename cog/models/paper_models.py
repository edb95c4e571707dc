"""The models of the paper, one row each, with the place of its weights. Licenses: docs/models.md."""

from typing import Any

from cog.models.spec import PaperModel

_TORCH = "https://download.pytorch.org/models/"
_FB = "https://dl.fbaipublicfiles.com/"
_DROPBOX = "https://www.dropbox.com/"
_GOOGLE = "https://storage.googleapis.com/"
_NAVER = "https://download.europe.naverlabs.com/ComputerVision/"


def row(label: str, url: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a row."""
    return {"label": label, "url": url, **fields}


def _deit(label: str, file: str, dim: int, top1: float) -> dict[str, Any]:
    size, distilled = int(file[-12:-9]), "distilled" in file
    return row(
        label,
        f"{_FB}deit/deit_{file}.pth",
        network=f"timm:deit_{file.rpartition('-')[0]}",
        dim=dim,
        head=("head", "head_dist") if distilled else ("head",),
        class_token=True,
        size=size,
        top1=top1,
        authors=(size * 256 // 224, size, "bicubic"),
    )


def _efficientnet(version: str, number: int, dim: int, size: int, top1: float) -> dict[str, Any]:
    return row(
        f"a-EfficientNet-{version}",
        f"{_FB}pycls/dds_baselines/{number}/EN-{version}_dds_8gpu.pyth",
        network=f"timm:efficientnet_{version.lower()}",
        dim=dim,
        head=("classifier",),
        prefix="model_state.",
        rename="pycls_timm",
        size=size,
        top1=top1,
        authors=(size * 256 // 224, size, "bilinear"),  # pycls resizes with OpenCV, without antialiasing
    )


def _clip(label: str, **fields: Any) -> dict[str, Any]:
    sha256 = "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762"
    norm = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    return row(
        label,
        f"https://openaipublic.azureedge.net/clip/models/{sha256}/RN50.pt",
        prefix="visual.",
        rename="clip_timm",
        norm=norm,
        pretraining="web",
        **fields,
    )


_ROWS: dict[str, dict[str, Any]] = {
    # The files that the original toolkit names (19c8e357, b121ed2d, 1a9a5a14) are of torch 0.1 and 0.2;
    # torchvision released the same tensors again under these names.
    "sup_resnet50": row("ResNet50", _TORCH + "resnet50-0676ba61.pth", top1=76.13),
    "sup_resnet152": row(
        "a-ResNet152", _TORCH + "resnet152-394f9c45.pth", network="torchvision:resnet152", top1=78.31
    ),
    # The weights expect (x - 0.5) / 0.5: torchvision converts inside (transform_input) when it loads them.
    # The original toolkit normalized with ImageNet's statistics and skipped the conversion.
    "sup_inception-v3": row(
        "a-Inception-v3",
        _TORCH + "inception_v3_google-0cc3c7bd.pth",
        network="torchvision:inception_v3",
        drop=("AuxLogits.",),
        size=299,
        norm=((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        top1=77.29,
        authors=(342, 299, "bilinear"),
    ),
    "sup_vgg19": row(
        "a-VGG19",
        _TORCH + "vgg19_bn-c79401a0.pth",
        network="torchvision:vgg19_bn",
        dim=4096,
        head=("classifier.6",),
        top1=74.22,
    ),
    "deit_small": _deit("a-DeiT-S", "small_patch16_224-cd65a155", 384, 79.9),
    "deit_small_distilled": _deit("a-DeiT-S-distilled", "small_distilled_patch16_224-649709d9", 384, 81.2),
    "deit_base_distilled_384": _deit("a-DeiT-B-distilled", "base_distilled_patch16_384-d0272ac0", 768, 85.2),
    # The only known copy, on the author's own site.
    "nat_m4": row(
        "a-NAT-M4",
        "https://www.zhichaolu.com/assets/neural-architecture-transfer/pretrained/imagenet/"
        "net-img@240-flops@600-top1@80.5/net.weights",
        network="cog:NatM4",
        dim=1536,
        head=("classifier.linear",),
        top1=80.5,
        authors=(274, 240, "bicubic"),
    ),
    "efficientnet_b1": _efficientnet("B1", 161304979, 1280, 240, 75.9),
    "efficientnet_b4": _efficientnet("B4", 161305098, 1792, 380, 78.6),
    "t2tvit_t14": row(
        "a-T2T-ViT-t-14",
        "https://github.com/yitu-opensource/T2T-ViT/releases/download/main/81.7_T2T_ViTt_14.pth.tar",
        network="cog:T2TViT",
        dim=384,
        head=("head",),
        class_token=True,
        top1=81.7,
        authors=(248, 224, "bicubic"),
    ),
    "simclrv2_resnet50": row(
        "s-SimCLR-v2",
        _GOOGLE + "simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0/model.ckpt-250228",
        network="cog:resnet50_same_pool",
        prefix="base_model/",
        rename="simclr_tensorflow",
        parts=(".data-00000-of-00001", ".index"),
        norm=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ),
    "byol_resnet50": row(
        "s-BYOL",
        _GOOGLE + "deepmind-byol/checkpoints/pretrain_res50x1.pkl",
        network="cog:resnet50_same",
        prefix="experiment_state.online_",
        rename="byol_haiku",
    ),
    "mocov2_resnet50": row(
        "s-MoCo-v2",
        _FB + "moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
        prefix="module.encoder_q.",
    ),
    "mochi_resnet50": row(
        "s-MoCHi", _NAVER + "MOCHI_models/mochi_512_1024_512_e1000.pth.tar", prefix="module.encoder_q."
    ),
    "infomin_resnet50": row(
        "s-InfoMin",
        _DROPBOX + "sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth?dl=1",
        prefix="module.encoder.",
    ),
    "swav_resnet50": row(
        "s-SwAV",
        _FB + "deepcluster/swav_800ep_pretrain.pth.tar",
        prefix="module.",
        drop=("projection_head.", "prototypes."),
    ),
    "dino_resnet50": row("s-DINO", _FB + "dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth"),
    "obow_resnet50": row(
        "s-OBoW",
        "https://github.com/valeoai/obow/releases/download/v0.1.0/"
        "ImageNetFull_ResNet50_OBoW_full_feature_extractor.zip",
        prefix="network.",
        member="tochvision_resnet50_student_K8192_epoch200.pth.tar",
    ),
    "barlow_resnet50": row(
        "s-BarlowTwins",
        _FB + "barlowtwins/epochs1000_bs2048_lr0.2_lambd0.0051_proj_8192_8192_8192_scale0.024/resnet50.pth",
    ),
    "compress_resnet50": row(
        "s-CompReSS", "https://drive.google.com/file/d/15rzzSkcedEuCE7Cm8yLXopA5PqHUQscb", browser=True
    ),
    "mixup_resnet50": row(
        "r-MixUp", _DROPBOX + "sh/g64c8bda61n12if/AACyaTZnku_Sgibc9UvOSblNa?dl=0", browser=True, top1=77.42
    ),
    "manifold-mixup_resnet50": row(
        "r-Manifold-MixUp",
        _DROPBOX + "sh/bjardjje11pti0g/AABFGW0gNrNE8o8TqUf4-SYSa?dl=0",
        browser=True,
        top1=77.5,
    ),
    "cutmix_resnet50": row(
        "r-CutMix", _DROPBOX + "sh/w8dvfgdc3eirivf/AABnGcTO9wao9xVGWwqsXRala?dl=0", browser=True, top1=78.6
    ),
    "relabel_resnet50": row(
        "r-ReLabel", _DROPBOX + "s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=1", top1=78.9
    ),
    # Where the authors moved the file; the original link expired in 2021.
    "advrobust_resnet50": row(
        "r-Adv-Robust",
        "https://huggingface.co/madrylab/robust-imagenet-models/resolve/main/resnet50_l2_eps0.1.ckpt",
        prefix="module.model.",
        top1=74.78,
    ),
    "mealv2_resnet50": row(
        "r-MEAL-v2",
        "https://github.com/szq0214/MEAL-V2/releases/download/v1.0.0/MEALV2_ResNet50_224.pth",
        top1=80.67,
    ),
    "mopro_resnet50": row(
        "d-MoPro",
        _GOOGLE + "sfr-pcl-data-research/MoPro_checkpoint/MoPro_V1_epoch90.tar",
        prefix="module.encoder_q.",
        drop=("classifier.", "fc1.", "fc2."),
        pretraining="web",
    ),
    "ssup_resnet50": row(
        "d-Semi-Sup",
        _FB + "semiweaksupervision/model_files/semi_supervised_resnet50-08389792.pth",
        top1=79.3,
        pretraining="IN-1K + other",
    ),
    "swsup_resnet50": row(
        "d-Semi-Weakly-Sup",
        _FB + "semiweaksupervision/model_files/semi_weakly_supervised_resnet50-16a12f1b.pth",
        top1=81.2,
        pretraining="IN-1K + other",
    ),
    "clip_resnet50": _clip("d-CLIP", network="timm:resnet50_clip", dim=1024, head=()),
    "clip_resnet50-trunk": _clip("CLIP (trunk)", network="timm:resnet50_clip_gap", head=("head.fc",)),
    "trex_resnet50": row("t-ReX", _NAVER + "trex_models/trex.pth"),
    "trexstar_resnet50": row("t-ReX*", _NAVER + "trex_models/trexstar.pth"),
}

MODELS: dict[str, PaperModel] = {name: PaperModel(name, **fields) for name, fields in _ROWS.items()}


def list_models(category: str | None = None) -> list[str]:
    """Return the names of all models, or of one category, in the paper's order; other models come last."""
    return [name for name, model in MODELS.items() if category in (None, model.category)]


_COLUMNS = ("model", "label", "category", "pretraining", "dim", "input", "mean / std", "top-1", "file")


def table() -> str:
    """Return the models as a Markdown table."""
    rows = _COLUMNS, ["---"] * len(_COLUMNS), *map(_cells, MODELS.values())
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cells(row: PaperModel) -> tuple[str, ...]:
    norm = " / ".join(f"{values[0]:.3g}" for values in row.norm) or "ImageNet"
    top1 = "" if row.top1 is None else f"{row.top1:.2f}"
    file = f"[{'with a browser' if row.browser else 'link'}](<{row.url}{row.parts[-1]}>)"
    return row.name, row.label, row.category, row.pretraining, str(row.dim), str(row.size), norm, top1, file
