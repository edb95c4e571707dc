"""The models, one row each. A new model is a new row here; the tests cover every row.

Layouts of the files are those that the authors' own code writes and reads. Parameter counts are without
classifier, as in the paper's table of models; a row's note explains a difference from that table.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cog.errors import CogError, nearest
from cog.models.spec import (
    CheckpointSource,
    ModelSpec,
    Network,
    Paper,
    Preprocess,
    Published,
    Release,
    Unwrap,
    Variant,
)

MODELS: dict[str, ModelSpec] = {}


def register(spec: ModelSpec) -> ModelSpec:
    """Add a model.

    Raises:
        CogError: the name is taken.
    """
    if spec.name in MODELS:
        raise CogError(f"model {spec.name} is declared twice")
    MODELS[spec.name] = spec
    return spec


def list_models(category: str | None = None) -> list[str]:
    """Return the names of all models, or of one category, in the paper's order; later models come last."""
    return [name for name, spec in MODELS.items() if category in (None, spec.paper.category)]


def get_spec(name: str) -> ModelSpec:
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


# ---- papers -----------------------------------------------------------------------------------------
_RESNET = "Deep Residual Learning for Image Recognition"
_DEIT = "Training data-efficient image transformers & distillation through attention"
_EFFICIENTNET = "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks"
_VGG = "Very Deep Convolutional Networks for Large-Scale Image Recognition"
_SEMI = "Billion-scale semi-supervised learning for image classification"

# ---- hosts ------------------------------------------------------------------------------------------
_TORCH = "https://download.pytorch.org/models/"
_FB = "https://dl.fbaipublicfiles.com/"
_DROPBOX = "https://www.dropbox.com/"

# ---- layouts ----------------------------------------------------------------------------------------
#: Layouts with torchvision's parameter names, bare or in the usual wrappings: plain state dicts of users.
_PLAIN = tuple(Unwrap(key, prefix) for prefix in ("module.", "") for key in (None, "state_dict", "model"))
_MOCO = Unwrap("state_dict", "module.encoder_q.", ignored_prefixes=("module.encoder_k.", "module.queue"))
_PYCLS = Unwrap(
    "model_state",
    # Newer files of the same code base also hold a moving average of the weights.
    ema_alternative=("ema_state", "ema_err", "test_err"),
    allow=("numpy.scalar",),  # the learning rate
)


def _timm(name: str) -> CheckpointSource:
    """Return the source of the same weights in timm's re-release as safetensors (equality is not checked here)."""
    url = f"https://huggingface.co/timm/{name}/resolve/main/model.safetensors"
    return CheckpointSource(url, note="re-released by timm")


def _release(
    script: str, *sources: CheckpointSource | str, license: str = "", accuracy: Published | None = None
) -> Release:
    """Return a release; a text among the sources is the link to a file without a published hash."""
    links = tuple(CheckpointSource(source) if isinstance(source, str) else source for source in sources)
    return Release(script, links, license, accuracy)


# ---- families ---------------------------------------------------------------------------------------
#: Stride in the 3x3 convolutions; the feature is the global average pool.
_RESNET50 = Network("cog.models.arch.resnet:resnet50", feature_dim=2048, parameters=23_508_032)


def _resnet50(
    name: str,
    label: str,
    category: str,
    title: str,
    *,
    layouts: tuple[Unwrap, ...] = (Unwrap(),),
    **fields: Any,
) -> None:
    """Declare a ResNet-50; ``fields`` are those of ModelSpec."""
    in_paper = category != "later"
    paper = Paper(label, category, title, comparable=in_paper, parameters=23.5 if in_paper else None)
    layouts = tuple(dict.fromkeys((*layouts, *_PLAIN)))
    register(ModelSpec(name, paper, layouts=layouts, **{"network": _RESNET50, **fields}))


def _fc7(
    name: str,
    paper: Paper,
    *,
    constructor: str,
    parameters: int,
    file: str,
    timm: str,
    top1: float,
    note: str,
) -> None:
    """Declare a network of torchvision whose feature is the last of its fully connected hidden layers."""
    digits = file.rpartition("-")[2].partition(".")[0]
    sources = [CheckpointSource(_TORCH + file, digits), *([_timm(timm)] if timm else [])]
    register(
        ModelSpec(
            name,
            paper,
            Network(f"torchvision.models:{constructor}", 4096, parameters, head=("classifier.6",)),
            layouts=(Unwrap(), Unwrap(rename="cog.models.rename:vgg_timm")) if timm else (Unwrap(),),
            release=_release("prepare_sup.sh", *sources, license="BSD-3-Clause", accuracy=Published(top1)),
            note=note,
        )
    )


def _deit(
    name: str, paper: Paper, *, dim: int, heads: int, size: int, distilled: bool, parameters: int, file: str,
    timm: str, top1: float,
) -> None:  # fmt: skip
    args = {"dim": dim, "heads": heads, "image_size": size, "distilled": distilled}
    head = ("head", "head_dist") if distilled else ("head",)
    digits = file.rpartition("-")[2].partition(".")[0]
    mean = " (not its mean with the distillation token)" if distilled else ""
    register(
        ModelSpec(
            name,
            paper,
            Network("cog.models.arch.vit:DeiT", dim, parameters, args, head),
            layouts=(Unwrap("model"), Unwrap()),
            preprocess=Preprocess(resize=size, crop=size),
            release=_release(
                "prepare_deit.sh",
                CheckpointSource(f"{_FB}deit/{file}", digits),
                _timm(timm),
                license="Apache-2.0",
                accuracy=Published(top1, resize=size * 256 // 224, crop=size, interpolation="bicubic"),
            ),
            note=f"the feature is the class token after the final LayerNorm{mean}",
        )
    )


def _efficientnet(
    name: str,
    paper: Paper,
    *,
    args: dict[str, Any],
    parameters: int,
    size: int,
    file: str,
    accuracy: Published,
) -> None:
    register(
        ModelSpec(
            name,
            paper,
            Network(
                "cog.models.arch.efficientnet:EfficientNet", args["head"], parameters, args, ("head.fc",)
            ),
            layouts=(_PYCLS, Unwrap()),
            preprocess=Preprocess(resize=size, crop=size),
            release=_release(
                "prepare_efficientnet.sh",
                f"{_FB}pycls/dds_baselines/{file}",
                license="MIT",
                accuracy=accuracy,
            ),
            note="pycls' training, not TensorFlow's; the channels are reversed inside (BGR)",
        )
    )


# ---- reference --------------------------------------------------------------------------------------
# torchvision's V1 weights; V2 is another training run. The files that the original toolkit names
# (19c8e357, b121ed2d, 1a9a5a14) are of torch 0.1 and 0.2; torchvision released the same tensors again
# under the names below.
_resnet50(
    "sup_resnet50", "ResNet50", "reference",
    _RESNET,
    release=_release(
        "prepare_sup.sh",
        CheckpointSource(_TORCH + "resnet50-0676ba61.pth", "0676ba61"),
        _timm("resnet50.tv_in1k"),
        license="BSD-3-Clause",
        accuracy=Published(76.13),
    ),
    note="torchvision's V1 weights; V2 is another training run",
)  # fmt: skip

# ---- architecture -----------------------------------------------------------------------------------
register(
    ModelSpec(
        "sup_resnet152",
        Paper("a-ResNet152", "architecture", _RESNET, parameters=58.1),
        Network("torchvision.models:resnet152", feature_dim=2048, parameters=58_143_808),
        layouts=tuple(dict.fromkeys((Unwrap(), *_PLAIN))),
        release=_release(
            "prepare_sup.sh",
            CheckpointSource(_TORCH + "resnet152-394f9c45.pth", "394f9c45"),
            _timm("resnet152.tv_in1k"),
            license="BSD-3-Clause",
            accuracy=Published(78.31),
        ),
        note="torchvision's V1 weights",
    )
)
register(
    ModelSpec(
        "sup_inception-v3",
        Paper(
            "a-Inception-v3",
            "architecture",
            "Rethinking the Inception Architecture for Computer Vision",
            comparable=True,
            parameters=25.1,
        ),
        Network(
            "torchvision.models:inception_v3",
            feature_dim=2048,
            parameters=21_785_568,
            args={"init_weights": False, "aux_logits": False, "transform_input": False},
        ),
        layouts=(Unwrap(drop=("AuxLogits.",)),),
        # The weights expect (x - 0.5) / 0.5: torchvision converts inside (transform_input) when it loads
        # them. The original toolkit normalized with ImageNet's statistics and skipped the conversion.
        preprocess=Preprocess(resize=299, crop=299, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        profiles={
            "reference-code": Variant(
                "ImageNet's mean and standard deviation without the conversion the weights need",
                preprocess=Preprocess(resize=299, crop=299),
            )
        },
        variants={
            "transform_input": Variant(
                "input with ImageNet's mean and standard deviation, converted inside the network as torchvision does; "
                "equal to the default but for rounding",
                preprocess=Preprocess(resize=299, crop=299),
                network_args={"transform_input": True},
            )
        },
        release=_release(
            "prepare_sup.sh",
            CheckpointSource(_TORCH + "inception_v3_google-0cc3c7bd.pth", "0cc3c7bd"),
            CheckpointSource(_TORCH + "inception_v3_google-1a9a5a14.pth", "1a9a5a14"),
            _timm("inception_v3.tv_in1k"),
            license="BSD-3-Clause",
            accuracy=Published(77.29, resize=342, crop=299),
        ),
        note="input scaled to [-1, 1] as the weights expect; the paper's 25.1M include the auxiliary classifier "
        "(3.3M), which no feature passes through",
    )
)
_fc7(
    "sup_vgg19", Paper("a-VGG19", "architecture", _VGG, parameters=139.6),
    constructor="vgg19_bn", parameters=139_581_248, file="vgg19_bn-c79401a0.pth", timm="vgg19_bn.tv_in1k", top1=74.22,
    note="with batch normalization; the feature is fc7 after its ReLU",
)  # fmt: skip
_deit(
    "deit_small", Paper("a-DeiT-S", "architecture", _DEIT, comparable=True, parameters=21.7),
    dim=384, heads=6, size=224, distilled=False, parameters=21_665_664, top1=79.9,
    file="deit_small_patch16_224-cd65a155.pth", timm="deit_small_patch16_224.fb_in1k",
)  # fmt: skip
_deit(
    "deit_small_distilled",
    Paper("a-DeiT-S-distilled", "architecture", _DEIT, comparable=True, parameters=21.7),
    dim=384, heads=6, size=224, distilled=True, parameters=21_666_432, top1=81.2,
    file="deit_small_distilled_patch16_224-649709d9.pth", timm="deit_small_distilled_patch16_224.fb_in1k",
)  # fmt: skip
_deit(
    "deit_base_distilled_384", Paper("a-DeiT-B-distilled", "architecture", _DEIT, parameters=86.1),
    dim=768, heads=12, size=384, distilled=True, parameters=86_092_032, top1=85.2,
    file="deit_base_distilled_patch16_384-d0272ac0.pth", timm="deit_base_distilled_patch16_384.fb_in1k",
)  # fmt: skip
register(
    ModelSpec(
        "nat_m4",
        Paper("a-NAT-M4", "architecture", "Neural Architecture Transfer", parameters=7.6),
        Network(
            "cog.models.arch.nat:NATM4", feature_dim=1536, parameters=7_598_928, head=("classifier.linear",)
        ),
        layouts=(
            Unwrap(),
            *(Unwrap(key, prefix) for prefix in ("module.", "") for key in (None, "state_dict")),
        ),
        release=_release(
            "prepare_nat.sh",
            CheckpointSource(
                "https://www.zhichaolu.com/assets/neural-architecture-transfer/pretrained/imagenet/"
                "net-img@240-flops@600-top1@80.5/net.weights",
                note="the only known copy, on the author's own site",
            ),
            accuracy=Published(80.5, resize=274, crop=240, interpolation="bicubic"),
        ),
        note="the feature is the output of the last 1x1 layer after its mish; 224 pixels as in the paper, although "
        "the network's own configuration says 240",
    )
)
# pycls resizes with OpenCV, whose bilinear interpolation does not antialias.
_efficientnet(
    "efficientnet_b1",
    Paper("a-EfficientNet-B1", "architecture", _EFFICIENTNET, parameters=6.5),
    args={
        "stem": 32, "depths": (2, 3, 3, 4, 4, 5, 2), "widths": (16, 24, 40, 80, 112, 192, 320), "head": 1280,
    },
    parameters=6_513_184,
    size=240,
    file="161304979/EN-B1_dds_8gpu.pyth",
    accuracy=Published(75.9, resize=274, crop=240),
)  # fmt: skip
_efficientnet(
    "efficientnet_b4",
    Paper("a-EfficientNet-B4", "architecture", _EFFICIENTNET, parameters=17.5),
    args={
        "stem": 48, "depths": (2, 4, 4, 6, 6, 8, 2), "widths": (24, 32, 56, 112, 160, 272, 448), "head": 1792,
    },
    parameters=17_548_616,
    size=380,
    file="161305098/EN-B4_dds_8gpu.pyth",
    accuracy=Published(78.6, resize=434, crop=380),
)  # fmt: skip
register(
    ModelSpec(
        "t2tvit_t14",
        Paper(
            "a-T2T-ViT-t-14",
            "architecture",
            "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet",
            comparable=True,
            parameters=21.1,
        ),
        Network("cog.models.arch.t2t:T2TViT", feature_dim=384, parameters=21_080_422, head=("head",)),
        # No other entry: the file's "state_dict", if any, would hold other weights than the paper's.
        layouts=(
            Unwrap("state_dict_ema", allow=("argparse.Namespace",)),
            Unwrap("state_dict_ema", "module."),
            Unwrap(prefix="module."),
            Unwrap(),
        ),
        release=_release(
            "prepare_t2tvit.sh",
            "https://github.com/yitu-opensource/T2T-ViT/releases/download/main/81.7_T2T_ViTt_14.pth.tar",
            CheckpointSource(
                "https://drive.google.com/file/d/1WdUT-3qq3duhECKk1CabXGktvd24p3Ti", manual=True
            ),
            license="BSD-3-Clause-Clear",
            accuracy=Published(81.7, resize=248, crop=224, interpolation="bicubic"),
        ),
        note="moving average of the weights; the feature is the class token after the final LayerNorm; the fixed "
        "position embedding is not counted as parameters",
    )
)

# ---- self-supervision -------------------------------------------------------------------------------
#: The configuration files of the original toolkit for SimCLR-v2 and CLIP matched no model name.
_REFERENCE_STATISTICS = (
    "the original toolkit's configuration file for this model matched no model name, so its code feeds "
    "ImageNet's mean and standard deviation"
)
_resnet50(
    "simclrv2_resnet50", "s-SimCLR-v2", "self-supervision",
    "Big Self-Supervised Models are Strong Semi-Supervised Learners",
    network=dataclasses.replace(_RESNET50, args={"max_pool": "same"}),
    layouts=(
        Unwrap(
            prefix="base_model/",
            ignored_prefixes=("head_contrastive/", "head_supervised/", "ema_model/", "global_step"),
            rename="cog.models.rename:simclr_tensorflow",
        ),
        Unwrap("resnet", rename="cog.models.rename:simclr_converted"),
    ),
    preprocess=Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    profiles={
        "reference-code": Variant(
            _REFERENCE_STATISTICS + "; max-pooling padded on both sides, as in the conversion it uses",
            preprocess=Preprocess(),
            network_args={"max_pool": "symmetric"},
        )
    },
    release=_release(
        "prepare_simclr.sh",
        CheckpointSource(
            "https://storage.googleapis.com/simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0/model.ckpt-250228",
            parts=(".data-00000-of-00001", ".index"),
            note="a TensorFlow checkpoint in two files, model.ckpt.index and model.ckpt.data-00000-of-00001",
        ),
        license="Apache-2.0",
    ),
    note="input in [0, 1], not normalized; max-pooling padded as in TensorFlow; not the moving average; the PyTorch "
    'conversion {"resnet", "head"} is accepted',
)  # fmt: skip
_resnet50(
    "byol_resnet50", "s-BYOL", "self-supervision",
    "Bootstrap your own latent: A new approach to self-supervised Learning",
    network=dataclasses.replace(_RESNET50, args={"convolutions": "same", "max_pool": "same"}),
    layouts=(
        Unwrap(
            "experiment_state",
            "online_",
            ignored_prefixes=("target_params/", "target_state/", "opt_state/"),
            drop=(
                "params/projector/",
                "params/predictor/",
                "params/classifier/",
                "state/projector/",
                "state/predictor/",
            ),
            rename="cog.models.rename:byol_haiku",
        ),
    ),
    release=_release(
        "prepare_byol.sh",
        "https://storage.googleapis.com/deepmind-byol/checkpoints/pretrain_res50x1.pkl",
        license="CC-BY-NC-4.0 (the code: Apache-2.0)",
    ),
    note="online network; padded as in Haiku; the bare state dict of byol-convert is accepted",
)  # fmt: skip
_resnet50(
    "mocov2_resnet50", "s-MoCo-v2", "self-supervision",
    "Momentum Contrast for Unsupervised Visual Representation Learning",
    layouts=(_MOCO,),
    release=_release(
        "prepare_moco.sh",
        _FB + "moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
        license="CC-BY-NC-4.0 by the README, MIT by the LICENSE file since 2023",
    ),
    note="query encoder",
)  # fmt: skip
_resnet50(
    "mochi_resnet50", "s-MoCHi", "self-supervision",
    "Hard Negative Mixing for Contrastive Learning",
    layouts=(_MOCO,),
    release=_release(
        "prepare_mochi.sh",
        "https://download.europe.naverlabs.com/ComputerVision/MOCHI_models/mochi_512_1024_512_e1000.pth.tar",
    ),
    note="query encoder",
)  # fmt: skip
_resnet50(
    "infomin_resnet50", "s-InfoMin", "self-supervision",
    "What Makes for Good Views for Contrastive Learning?",
    layouts=(
        Unwrap(
            "model",
            "module.encoder.",
            ignored_prefixes=("module.head.", "module.head_jig."),
            allow=("argparse.Namespace",),
        ),
    ),
    release=_release(
        "prepare_infomin.sh",
        _DROPBOX + "sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth?dl=1",
        CheckpointSource(
            _DROPBOX + "sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth", manual=True
        ),
        license="BSD-2-Clause",
    ),
    note="not the momentum model",
)  # fmt: skip
_resnet50(
    "swav_resnet50", "s-SwAV", "self-supervision",
    "Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
    layouts=(Unwrap(prefix="module.", drop=("projection_head.", "prototypes.")),),
    release=_release(
        "prepare_swav.sh", _FB + "deepcluster/swav_800ep_pretrain.pth.tar", license="CC-BY-NC-4.0"
    ),
)  # fmt: skip
_resnet50(
    "dino_resnet50", "s-DINO", "self-supervision",
    "Emerging Properties in Self-Supervised Vision Transformers",
    release=_release(
        "prepare_dino.sh",
        _FB + "dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth",
        license="Apache-2.0",
    ),
)  # fmt: skip
_resnet50(
    "obow_resnet50", "s-OBoW", "self-supervision",
    "Online Bag-of-Visual-Words Generation for Unsupervised Representation Learning",
    layouts=(Unwrap("network"),),
    release=_release(
        "prepare_obow.sh",
        CheckpointSource(
            "https://github.com/valeoai/obow/releases/download/v0.1.0/"
            "ImageNetFull_ResNet50_OBoW_full_feature_extractor.zip",
            member="ImageNetFull_ResNet50_OBoW_full_feature_extractor/"
            "tochvision_resnet50_student_K8192_epoch200.pth.tar",
        ),
        license="Apache-2.0 by the LICENSE file, MIT by the README",
    ),
    note="student network",
)  # fmt: skip
_resnet50(
    "barlow_resnet50", "s-BarlowTwins", "self-supervision",
    "Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
    release=_release(
        "prepare_barlow.sh",
        _FB + "barlowtwins/epochs1000_bs2048_lr0.2_lambd0.0051_proj_8192_8192_8192_scale0.024/resnet50.pth",
        license="CC-BY-NC-4.0 while this file was listed, MIT since July 2021",
    ),
    note="the first of three released checkpoints, the one the paper used; torch.hub gives another one",
)  # fmt: skip
_resnet50(
    "compress_resnet50", "s-CompReSS", "self-supervision",
    "CompRess: Self-Supervised Learning by Compressing Representations",
    layouts=(Unwrap("model", "module.", allow=("argparse.Namespace", "numpy.scalar")),),
    release=_release(
        "prepare_compress.sh",
        CheckpointSource("https://drive.google.com/file/d/15rzzSkcedEuCE7Cm8yLXopA5PqHUQscb", manual=True),
        license="MIT",
    ),
    note="student of a SimCLR ResNet-50 x4",
)  # fmt: skip

# ---- regularization ---------------------------------------------------------------------------------
# Classifiers trained with DataParallel; a file may or may not wrap its state dict.
for _name, _label, _title, _folder, _top1 in (
    (
        "mixup_resnet50", "r-MixUp", "mixup: Beyond Empirical Risk Minimization",
        "g64c8bda61n12if/AACyaTZnku_Sgibc9UvOSblNa", 77.42,
    ),
    (
        "manifold-mixup_resnet50", "r-Manifold-MixUp",
        "Manifold Mixup: Better Representations by Interpolating Hidden States",
        "bjardjje11pti0g/AABFGW0gNrNE8o8TqUf4-SYSa", 77.50,
    ),
    (
        "cutmix_resnet50", "r-CutMix",
        "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features",
        "w8dvfgdc3eirivf/AABnGcTO9wao9xVGWwqsXRala", 78.60,
    ),
):  # fmt: skip
    _resnet50(
        _name,
        _label,
        "regularization",
        _title,
        layouts=(Unwrap("state_dict", "module."),),
        release=_release(
            "prepare_cutmix.sh",
            CheckpointSource(f"{_DROPBOX}sh/{_folder}?dl=0", manual=True),
            license="MIT",
            accuracy=Published(_top1),
        ),
    )
_resnet50(
    "relabel_resnet50", "r-ReLabel", "regularization",
    "Re-labeling ImageNet: from Single to Multi-Labels, from Global to Localized Labels",
    layouts=(Unwrap(prefix="module."),),
    release=_release(
        "prepare_relabel.sh",
        _DROPBOX + "s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=1",
        CheckpointSource(_DROPBOX + "s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=0", manual=True),
        license="Apache-2.0",
        accuracy=Published(78.9),
    ),
)  # fmt: skip
_resnet50(
    "advrobust_resnet50", "r-Adv-Robust", "regularization",
    "Do Adversarially Robust ImageNet Models Transfer Better?",
    layouts=(
        Unwrap(
            "model",
            "module.model.",
            ignored_prefixes=("module.normalizer.", "module.attacker."),
            allow=("numpy.scalar",),
        ),
    ),
    release=_release(
        "prepare_advrobust.sh",
        CheckpointSource(
            "https://huggingface.co/madrylab/robust-imagenet-models/resolve/main/resnet50_l2_eps0.1.ckpt",
            note="where the authors moved the file; the original link expired in 2021",
        ),
        license="MIT",
        accuracy=Published(74.78),
    ),
    note="trained against L2 perturbations of size 0.1; the network's own input normalization is done outside",
)  # fmt: skip
_resnet50(
    "mealv2_resnet50", "r-MEAL-v2", "regularization",
    "MEAL V2: Boosting Vanilla ResNet-50 to 80%+ Top-1 Accuracy on ImageNet without Tricks",
    layouts=(Unwrap(prefix="module."),),
    release=_release(
        "prepare_mealv2.sh",
        "https://github.com/szq0214/MEAL-V2/releases/download/v1.0.0/MEALV2_ResNet50_224.pth",
        CheckpointSource("https://1drv.ms/u/s!AtMVZxJ8MfxCi0NGENlMK0pYVDQM?e=GkwZ93", manual=True),
        accuracy=Published(80.67),
    ),
)  # fmt: skip

# ---- web data ---------------------------------------------------------------------------------------
_resnet50(
    "mopro_resnet50", "d-MoPro", "web-data",
    "MoPro: Webly Supervised Learning with Momentum Prototypes",
    layouts=(
        Unwrap(
            "state_dict",
            "module.encoder_q.",
            ignored_prefixes=("module.encoder_k.", "module.queue", "module.prototypes"),
            drop=("classifier.", "fc1.", "fc2."),
        ),
    ),
    release=_release(
        "prepare_mopro.sh",
        "https://storage.googleapis.com/sfr-pcl-data-research/MoPro_checkpoint/MoPro_V1_epoch90.tar",
    ),
    note="query encoder, trained on WebVision V1; the file is a torch file despite its ending",
    pretraining="web",
)  # fmt: skip
_resnet50(
    "ssup_resnet50", "d-Semi-Sup", "web-data",
    _SEMI,
    release=_release(
        "prepare_swsup.sh",
        CheckpointSource(
            _FB + "semiweaksupervision/model_files/semi_supervised_resnet50-08389792.pth", "08389792"
        ),
        _timm("resnet50.fb_ssl_yfcc100m_ft_in1k"),
        license="CC-BY-NC-4.0",
        accuracy=Published(79.3),
    ),
    pretraining="IN-1K + other",
)  # fmt: skip
_resnet50(
    "swsup_resnet50", "d-Semi-Weakly-Sup", "web-data",
    _SEMI,
    release=_release(
        "prepare_swsup.sh",
        CheckpointSource(
            _FB + "semiweaksupervision/model_files/semi_weakly_supervised_resnet50-16a12f1b.pth", "16a12f1b"
        ),
        _timm("resnet50.fb_swsl_ig1b_ft_in1k"),
        license="CC-BY-NC-4.0",
        accuracy=Published(81.2),
    ),
    pretraining="IN-1K + other",
)  # fmt: skip
register(
    ModelSpec(
        "clip_resnet50",
        Paper(
            "d-CLIP",
            "web-data",
            "Learning Transferable Visual Models From Natural Language Supervision",
            comparable=True,
        ),
        Network("cog.models.arch.clip:ClipResNet50", feature_dim=1024, parameters=38_316_896, head=()),
        layouts=(
            Unwrap(
                prefix="visual.",
                ignored_prefixes=(
                    "transformer.",
                    "token_embedding.",
                    "ln_final.",
                    "positional_embedding",
                    "text_projection",
                    "logit_scale",
                    "input_resolution",
                    "context_length",
                    "vocab_size",
                ),
            ),
            Unwrap(rename="cog.models.rename:clip_timm"),
        ),
        preprocess=Preprocess(
            mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
        ),
        profiles={"reference-code": Variant(_REFERENCE_STATISTICS, preprocess=Preprocess())},
        variants={
            "trunk": Variant(
                "2048-d global average of the last stage, without the attention pooling",
                network_args={"pool": "average"},
                feature_dim=2048,
                head=("attnpool",),
            )
        },
        release=_release(
            "prepare_clip.sh",
            CheckpointSource(
                "https://openaipublic.azureedge.net/clip/models/"
                "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762/RN50.pt",
                "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762",
            ),
            CheckpointSource(
                "https://huggingface.co/timm/resnet50_clip.openai/resolve/main/open_clip_model.safetensors",
                note="re-released by timm",
            ),
            license="MIT",
        ),
        note="image tower only, in float32; 1024-d output of encode_image, as the original toolkit's code gives (the "
        "paper's Table 3 says 2048 for every ResNet: that is the variant trunk, with 23.5M parameters)",
        pretraining="web",
    )
)

# ---- only in the paper's first version ------------------------------------------------------------------
# From Fig. 11 of its supplement, which has no numbers. torchvision's V1 weights; their file names hold the hashes.
_fc7(
    "sup_alexnet",
    Paper("AlexNet", "first-version", "One weird trick for parallelizing convolutional neural networks"),
    constructor="alexnet", parameters=57_003_840, file="alexnet-owt-7be5be79.pth", timm="", top1=56.522,
    note="in the paper's first version alone; the feature is the last hidden layer (fc7) after its ReLU",
)  # fmt: skip
_fc7(
    "sup_vgg16", Paper("VGG-16", "first-version", _VGG),
    constructor="vgg16_bn", parameters=134_268_992, file="vgg16_bn-6c64b313.pth", timm="vgg16_bn.tv_in1k", top1=73.36,
    note="in the paper's first version alone; with batch normalization; the feature is the last hidden layer (fc7) "
    "after its ReLU",
)  # fmt: skip

# ---- later models of the same authors, on IN-1K alone -----------------------------------------------
_TREX = "No Reason for No Supervision: Improved Generalization in Supervised Models"
for _name, _label, _file, _top1 in (
    ("trex_resnet50", "t-ReX", "trex.pth", 78.0),
    ("trexstar_resnet50", "t-ReX*", "trexstar.pth", 80.2),
):
    _resnet50(
        _name,
        _label,
        "later",
        _TREX,
        release=_release(
            "prepare_trex.sh",
            CheckpointSource(
                f"https://download.europe.naverlabs.com/ComputerVision/trex_models/{_file}",
                note="the link of the authors' README; no SHA-256 is published",
            ),
            license="CC-BY-NC-SA-4.0",
        ),
        note=f"not in the paper; the file holds no classifier (the authors report {_top1} % on IN-1K)",
    )
