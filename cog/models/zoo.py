"""The models, one row each. To add one: write its row here (and, if the row cannot say how to load
it, a loader function ``load_my_model(init_args)`` that the row names).

Layouts of the files are those that the authors' own code writes and reads. Parameter counts are without
classifier, as in the paper's table of models; a row's note explains where they differ from it.
"""

from __future__ import annotations

import difflib

from cog.errors import CogError
from cog.models.spec import ModelSpec, Preprocess, Published, Source, Unwrap, Variant

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


# ---- papers -----------------------------------------------------------------------------------------
_RESNET = "Deep Residual Learning for Image Recognition"
_DEIT = "Training data-efficient image transformers & distillation through attention"
_EFFICIENTNET = "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks"
_SEMI = "Billion-scale semi-supervised learning for image classification"

# ---- hosts ------------------------------------------------------------------------------------------
_TORCH = "https://download.pytorch.org/models/"
_FB = "https://dl.fbaipublicfiles.com/"

# ---- layouts ----------------------------------------------------------------------------------------
#: torchvision's parameter names, bare or in the usual wrappings: plain state dicts that users have.
_PLAIN = tuple(
    Unwrap(key=key, prefix=prefix) for prefix in ("module.", "") for key in (None, "state_dict", "model")
)
_REFERENCE_STATISTICS = Variant(
    "the original toolkit's configuration file for this model matched no model name, so its code feeds "
    "ImageNet's mean and standard deviation",
    preprocess=Preprocess(),
)


def _timm(name: str) -> Source:
    """The same weights, re-released by timm in safetensors (equality is theirs to state, not checked here)."""
    return Source(
        f"https://huggingface.co/timm/{name}/resolve/main/model.safetensors", note="re-released by timm"
    )


def _resnet50(
    name: str,
    *,
    label: str,
    category: str,
    paper: str,
    prepare: str,
    sources: tuple[Source, ...],
    unwrap: Unwrap = Unwrap(),  # noqa: B008 (frozen)
    accepts: tuple[Unwrap, ...] = (),
    arch: str = "cog.models.arch.resnet:resnet50",
    arch_args: dict[str, object] | None = None,
    container: str = "torch",
    preprocess: Preprocess = Preprocess(),  # noqa: B008 (frozen)
    profiles: dict[str, Variant] | None = None,
    published: Published | None = None,
    other_hashes: tuple[str, ...] = (),
    licence: str = "",
    note: str = "",
) -> None:
    """A ResNet-50 (stride in the 3x3 convolutions); the feature is the global average pool."""
    register(
        ModelSpec(
            name=name,
            label=label,
            category=category,
            feature_dim=2048,
            comparable=True,
            parameters=23_508_032,
            paper_parameters=23.5,
            arch=arch,
            arch_args=arch_args or {},
            unwrap=unwrap,
            accepts=(*accepts, *(layout for layout in _PLAIN if layout != unwrap)),
            container=container,
            preprocess=preprocess,
            profiles=profiles or {},
            published=published,
            paper=paper,
            prepare=prepare,
            sources=sources,
            other_hashes=other_hashes,
            licence=licence,
            note=note,
        )
    )


# ---- reference --------------------------------------------------------------------------------------
# torchvision's V1 weights; V2 is another training run. The files that the original toolkit names
# (19c8e357, b121ed2d, 1a9a5a14) are of torch 0.1 and 0.2; torchvision released the same tensors again
# under the names below. The container of torch 0.1 is read too.
_resnet50(
    "sup_resnet50",
    label="ResNet50",
    category="reference",
    paper=_RESNET,
    prepare="prepare_sup.sh",
    sources=(
        Source(_TORCH + "resnet50-0676ba61.pth", "0676ba61"),
        Source(
            _TORCH + "resnet50-19c8e357.pth",
            "19c8e357",
            note="the same tensors in the container of torch 0.1",
        ),
        _timm("resnet50.tv_in1k"),
    ),
    published=Published(76.13),
    licence="BSD-3-Clause",
    note="torchvision's V1 weights; V2 is another training run",
)

# ---- architecture -----------------------------------------------------------------------------------
register(
    ModelSpec(
        name="sup_resnet152",
        label="a-ResNet152",
        category="architecture",
        feature_dim=2048,
        parameters=58_143_808,
        paper_parameters=58.1,
        arch="torchvision.models:resnet152",
        accepts=_PLAIN,
        paper=_RESNET,
        prepare="prepare_sup.sh",
        sources=(
            Source(_TORCH + "resnet152-394f9c45.pth", "394f9c45"),
            Source(
                _TORCH + "resnet152-b121ed2d.pth",
                "b121ed2d",
                note="the same tensors in the container of torch 0.1",
            ),
            _timm("resnet152.tv_in1k"),
        ),
        published=Published(78.31),
        licence="BSD-3-Clause",
        note="torchvision's V1 weights",
    )
)
register(
    ModelSpec(
        name="sup_inception-v3",
        label="a-Inception-v3",
        category="architecture",
        feature_dim=2048,
        comparable=True,
        parameters=21_785_568,
        paper_parameters=25.1,
        arch="torchvision.models:inception_v3",
        arch_args={"init_weights": False, "aux_logits": False, "transform_input": False},
        unwrap=Unwrap(drop=("AuxLogits.",)),
        # The weights expect (x - 0.5) / 0.5: torchvision converts inside (transform_input) when it loads
        # them. The original toolkit normalised with ImageNet's statistics and skipped the conversion.
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
                arch_args={"transform_input": True},
            )
        },
        published=Published(77.29, resize=342, crop=299),
        paper="Rethinking the Inception Architecture for Computer Vision",
        prepare="prepare_sup.sh",
        sources=(
            Source(_TORCH + "inception_v3_google-0cc3c7bd.pth", "0cc3c7bd"),
            Source(_TORCH + "inception_v3_google-1a9a5a14.pth", "1a9a5a14"),
            _timm("inception_v3.tv_in1k"),
        ),
        licence="BSD-3-Clause",
        note="input scaled to [-1, 1] as the weights expect; the paper's 25.1M include the auxiliary classifier "
        "(3.3M), which no feature passes through",
    )
)
register(
    ModelSpec(
        name="sup_vgg19",
        label="a-VGG19",
        category="architecture",
        feature_dim=4096,
        parameters=139_581_248,
        paper_parameters=139.6,
        arch="torchvision.models:vgg19_bn",
        head="classifier.6",
        accepts=(Unwrap(prefix="", rename="cog.models.rename:vgg_timm"),),
        published=Published(74.22),
        paper="Very Deep Convolutional Networks for Large-Scale Image Recognition",
        prepare="prepare_sup.sh",
        sources=(Source(_TORCH + "vgg19_bn-c79401a0.pth", "c79401a0"), _timm("vgg19_bn.tv_in1k")),
        licence="BSD-3-Clause",
        note="with batch normalisation; the feature is fc7 after its ReLU",
    )
)


def _deit(
    name: str,
    *,
    label: str,
    parameters: int,
    paper_parameters: float,
    file: str,
    timm: str,
    dim: int,
    heads: int,
    top1: float,
    image_size: int = 224,
    distilled: bool = False,
    comparable: bool = True,
) -> None:
    register(
        ModelSpec(
            name=name,
            label=label,
            category="architecture",
            feature_dim=dim,
            comparable=comparable,
            parameters=parameters,
            paper_parameters=paper_parameters,
            arch="cog.models.arch.vit:DeiT",
            arch_args={"dim": dim, "heads": heads, "image_size": image_size, "distilled": distilled},
            head=("head", "head_dist") if distilled else "head",
            unwrap=Unwrap(key="model"),
            accepts=(Unwrap(),),
            preprocess=Preprocess(resize=image_size, crop=image_size),
            published=Published(
                top1, resize=image_size * 256 // 224, crop=image_size, interpolation="bicubic"
            ),
            paper=_DEIT,
            prepare="prepare_deit.sh",
            sources=(Source(f"{_FB}deit/{file}", file.rpartition("-")[2].partition(".")[0]), _timm(timm)),
            licence="Apache-2.0",
            note="the feature is the class token after the final LayerNorm"
            + (" (not its mean with the distillation token)" if distilled else ""),
        )
    )


_deit(
    "deit_small",
    label="a-DeiT-S",
    parameters=21_665_664,
    paper_parameters=21.7,
    file="deit_small_patch16_224-cd65a155.pth",
    timm="deit_small_patch16_224.fb_in1k",
    dim=384,
    heads=6,
    top1=79.9,
)
_deit(
    "deit_small_distilled",
    label="a-DeiT-S-distilled",
    parameters=21_666_432,
    paper_parameters=21.7,
    file="deit_small_distilled_patch16_224-649709d9.pth",
    timm="deit_small_distilled_patch16_224.fb_in1k",
    dim=384,
    heads=6,
    top1=81.2,
    distilled=True,
)
_deit(
    "deit_base_distilled_384",
    label="a-DeiT-B-distilled",
    parameters=86_092_032,
    paper_parameters=86.1,
    file="deit_base_distilled_patch16_384-d0272ac0.pth",
    timm="deit_base_distilled_patch16_384.fb_in1k",
    dim=768,
    heads=12,
    top1=85.2,
    image_size=384,
    distilled=True,
    comparable=False,
)
register(
    ModelSpec(
        name="nat_m4",
        label="a-NAT-M4",
        category="architecture",
        feature_dim=1536,
        parameters=7_598_928,
        paper_parameters=7.6,
        arch="cog.models.arch.nat:NATM4",
        head="classifier.linear",
        accepts=tuple(
            Unwrap(key=key, prefix=prefix) for prefix in ("module.", "") for key in (None, "state_dict")
        ),
        published=Published(80.5, resize=274, crop=240, interpolation="bicubic"),
        paper="Neural Architecture Transfer",
        prepare="prepare_nat.sh",
        sources=(
            Source(
                "https://www.zhichaolu.com/assets/neural-architecture-transfer/pretrained/imagenet/"
                "net-img@240-flops@600-top1@80.5/net.weights",
                note="the only known copy, on the author's own site",
            ),
        ),
        note="the feature is the output of the last 1x1 layer after its mish; 224 pixels as in the paper, although "
        "the network's own configuration says 240",
    )
)


def _efficientnet(
    name: str,
    *,
    label: str,
    parameters: int,
    paper_parameters: float,
    arch_args: dict[str, object],
    feature_dim: int,
    image_size: int,
    test_resize: int,
    top1: float,
    file: str,
) -> None:
    register(
        ModelSpec(
            name=name,
            label=label,
            category="architecture",
            feature_dim=feature_dim,
            parameters=parameters,
            paper_parameters=paper_parameters,
            arch="cog.models.arch.efficientnet:EfficientNet",
            arch_args=arch_args,
            head="head.fc",
            unwrap=Unwrap(
                key="model_state",
                # Newer files of the same code base hold a moving average of the weights too.
                rival=("ema_state", "ema_err", "test_err"),
                allow=("numpy.scalar",),  # the learning rate
            ),
            accepts=(Unwrap(),),
            preprocess=Preprocess(resize=image_size, crop=image_size),
            # pycls resizes with OpenCV, whose bilinear interpolation does not antialias.
            published=Published(top1, resize=test_resize, crop=image_size),
            paper=_EFFICIENTNET,
            prepare="prepare_efficientnet.sh",
            sources=(Source(f"{_FB}pycls/dds_baselines/{file}"),),
            licence="MIT",
            note="pycls' training, not TensorFlow's; the channels are reversed inside (BGR)",
        )
    )


_efficientnet(
    "efficientnet_b1",
    label="a-EfficientNet-B1",
    parameters=6_513_184,
    paper_parameters=6.5,
    arch_args={
        "stem": 32,
        "depths": (2, 3, 3, 4, 4, 5, 2),
        "widths": (16, 24, 40, 80, 112, 192, 320),
        "head": 1280,
    },
    feature_dim=1280,
    image_size=240,
    test_resize=274,
    top1=75.9,
    file="161304979/EN-B1_dds_8gpu.pyth",
)
_efficientnet(
    "efficientnet_b4",
    label="a-EfficientNet-B4",
    parameters=17_548_616,
    paper_parameters=17.5,
    arch_args={
        "stem": 48,
        "depths": (2, 4, 4, 6, 6, 8, 2),
        "widths": (24, 32, 56, 112, 160, 272, 448),
        "head": 1792,
    },
    feature_dim=1792,
    image_size=380,
    test_resize=434,
    top1=78.6,
    file="161305098/EN-B4_dds_8gpu.pyth",
)
register(
    ModelSpec(
        name="t2tvit_t14",
        label="a-T2T-ViT-t-14",
        category="architecture",
        feature_dim=384,
        comparable=True,
        parameters=21_080_422,
        paper_parameters=21.1,
        arch="cog.models.arch.t2t:T2TViT",
        head="head",
        unwrap=Unwrap(key="state_dict_ema", allow=("argparse.Namespace",)),
        # No other entry: the file's "state_dict", if any, would be other weights than the paper's.
        accepts=(Unwrap(key="state_dict_ema", prefix="module."), Unwrap(prefix="module."), Unwrap()),
        published=Published(81.7, resize=248, crop=224, interpolation="bicubic"),
        paper="Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet",
        prepare="prepare_t2tvit.sh",
        sources=(
            Source(
                "https://github.com/yitu-opensource/T2T-ViT/releases/download/main/81.7_T2T_ViTt_14.pth.tar"
            ),
            Source("https://drive.google.com/file/d/1WdUT-3qq3duhECKk1CabXGktvd24p3Ti", manual=True),
        ),
        licence="BSD-3-Clause-Clear",
        note="moving average of the weights; the feature is the class token after the final LayerNorm; the fixed "
        "position embedding is not counted as parameters",
    )
)

# ---- self-supervision -------------------------------------------------------------------------------
_resnet50(
    "simclrv2_resnet50",
    label="s-SimCLR-v2",
    category="self-supervision",
    paper="Big Self-Supervised Models are Strong Semi-Supervised Learners",
    prepare="prepare_simclr.sh",
    container="tensorflow",
    unwrap=Unwrap(
        prefix="base_model/",
        others=("head_contrastive/", "head_supervised/", "ema_model/", "global_step"),
        rename="cog.models.rename:simclr_tensorflow",
    ),
    accepts=(Unwrap(key="resnet", prefix="", rename="cog.models.rename:simclr_converted"),),
    arch_args={"max_pool": "same"},
    preprocess=Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    profiles={
        "reference-code": Variant(
            _REFERENCE_STATISTICS.note + "; max-pooling padded on both sides, as in the conversion it uses",
            preprocess=Preprocess(),
            arch_args={"max_pool": "symmetric"},
        )
    },
    sources=(
        Source(
            "https://storage.googleapis.com/simclr-checkpoints/simclrv2/pretrained/r50_1x_sk0/model.ckpt-250228",
            parts=(".data-00000-of-00001", ".index"),
            note="a TensorFlow checkpoint in two files, model.ckpt.index and model.ckpt.data-00000-of-00001",
        ),
    ),
    licence="Apache-2.0",
    note="input in [0, 1], not normalised; max-pooling padded as in TensorFlow; not the moving average; the PyTorch "
    'conversion {"resnet", "head"} is accepted',
)
_resnet50(
    "byol_resnet50",
    label="s-BYOL",
    category="self-supervision",
    paper="Bootstrap your own latent: A new approach to self-supervised Learning",
    prepare="prepare_byol.sh",
    container="pickle (dill, Haiku)",
    unwrap=Unwrap(
        key="experiment_state",
        prefix="online_",
        others=("target_params/", "target_state/", "opt_state/"),
        drop=(
            "params/projector/",
            "params/predictor/",
            "params/classifier/",
            "state/projector/",
            "state/predictor/",
        ),
        rename="cog.models.rename:byol_haiku",
    ),
    arch_args={"convolutions": "same", "max_pool": "same"},
    sources=(Source("https://storage.googleapis.com/deepmind-byol/checkpoints/pretrain_res50x1.pkl"),),
    licence="CC-BY-NC-4.0 (the code: Apache-2.0)",
    note="online network; padded as in Haiku; the bare state dict of byol-convert is accepted",
)


def _moco(
    name: str, *, label: str, paper: str, prepare: str, url: str, licence: str = "", note: str = ""
) -> None:
    _resnet50(
        name,
        label=label,
        category="self-supervision",
        paper=paper,
        prepare=prepare,
        unwrap=Unwrap(
            key="state_dict", prefix="module.encoder_q.", others=("module.encoder_k.", "module.queue")
        ),
        sources=(Source(url),),
        licence=licence,
        note=note or "query encoder",
    )


_moco(
    "mocov2_resnet50",
    label="s-MoCo-v2",
    paper="Momentum Contrast for Unsupervised Visual Representation Learning",
    prepare="prepare_moco.sh",
    url=_FB + "moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
    licence="CC-BY-NC-4.0 by the README, MIT by the LICENSE file since 2023",
)
_moco(
    "mochi_resnet50",
    label="s-MoCHi",
    paper="Hard Negative Mixing for Contrastive Learning",
    prepare="prepare_mochi.sh",
    url="https://download.europe.naverlabs.com/ComputerVision/MOCHI_models/mochi_512_1024_512_e1000.pth.tar",
)
_resnet50(
    "infomin_resnet50",
    label="s-InfoMin",
    category="self-supervision",
    paper="What Makes for Good Views for Contrastive Learning?",
    prepare="prepare_infomin.sh",
    unwrap=Unwrap(
        key="model",
        prefix="module.encoder.",
        others=("module.head.", "module.head_jig."),
        allow=("argparse.Namespace",),
    ),
    sources=(
        Source("https://www.dropbox.com/sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth?dl=1"),
        Source(
            "https://www.dropbox.com/sh/87d24jqsl6ra7t2/AAAzMTynP3Qc8mIE4XWkgILUa/InfoMin_800.pth",
            manual=True,
        ),
    ),
    licence="BSD-2-Clause",
    note="not the momentum model",
)
_resnet50(
    "swav_resnet50",
    label="s-SwAV",
    category="self-supervision",
    paper="Unsupervised Learning of Visual Features by Contrasting Cluster Assignments",
    prepare="prepare_swav.sh",
    unwrap=Unwrap(prefix="module.", drop=("projection_head.", "prototypes.")),
    sources=(Source(_FB + "deepcluster/swav_800ep_pretrain.pth.tar"),),
    licence="CC-BY-NC-4.0",
)
_resnet50(
    "dino_resnet50",
    label="s-DINO",
    category="self-supervision",
    paper="Emerging Properties in Self-Supervised Vision Transformers",
    prepare="prepare_dino.sh",
    sources=(Source(_FB + "dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth"),),
    licence="Apache-2.0",
)
_resnet50(
    "obow_resnet50",
    label="s-OBoW",
    category="self-supervision",
    paper="Online Bag-of-Visual-Words Generation for Unsupervised Representation Learning",
    prepare="prepare_obow.sh",
    unwrap=Unwrap(key="network"),
    sources=(
        Source(
            "https://github.com/valeoai/obow/releases/download/v0.1.0/"
            "ImageNetFull_ResNet50_OBoW_full_feature_extractor.zip",
            member="ImageNetFull_ResNet50_OBoW_full_feature_extractor/"
            "tochvision_resnet50_student_K8192_epoch200.pth.tar",
        ),
    ),
    licence="Apache-2.0 by the LICENSE file, MIT by the README",
    note="student network",
)
_resnet50(
    "barlow_resnet50",
    label="s-BarlowTwins",
    category="self-supervision",
    paper="Barlow Twins: Self-Supervised Learning via Redundancy Reduction",
    prepare="prepare_barlow.sh",
    sources=(
        Source(
            _FB
            + "barlowtwins/epochs1000_bs2048_lr0.2_lambd0.0051_proj_8192_8192_8192_scale0.024/resnet50.pth"
        ),
    ),
    licence="CC-BY-NC-4.0 while this file was listed, MIT since July 2021",
    note="the first of three released checkpoints, the one the paper used; torch.hub gives another one",
)
_resnet50(
    "compress_resnet50",
    label="s-CompReSS",
    category="self-supervision",
    paper="CompRess: Self-Supervised Learning by Compressing Representations",
    prepare="prepare_compress.sh",
    unwrap=Unwrap(key="model", prefix="module.", allow=("argparse.Namespace", "numpy.scalar")),
    sources=(Source("https://drive.google.com/file/d/15rzzSkcedEuCE7Cm8yLXopA5PqHUQscb", manual=True),),
    licence="MIT",
    note="student of a SimCLR ResNet-50 x4",
)


# ---- regularization ---------------------------------------------------------------------------------
def _regularized(
    name: str,
    *,
    label: str,
    paper: str,
    prepare: str,
    sources: tuple[Source, ...],
    top1: float,
    key: str | None = "state_dict",
    licence: str = "",
) -> None:
    """A classifier trained with DataParallel, whose published file may or may not wrap its state dict."""
    _resnet50(
        name,
        label=label,
        category="regularization",
        paper=paper,
        prepare=prepare,
        unwrap=Unwrap(key=key, prefix="module."),
        sources=sources,
        published=Published(top1),
        licence=licence,
    )


_regularized(
    "mixup_resnet50",
    label="r-MixUp",
    paper="mixup: Beyond Empirical Risk Minimization",
    prepare="prepare_cutmix.sh",
    sources=(
        Source("https://www.dropbox.com/sh/g64c8bda61n12if/AACyaTZnku_Sgibc9UvOSblNa?dl=0", manual=True),
    ),
    top1=77.42,
    licence="MIT",
)
_regularized(
    "manifold-mixup_resnet50",
    label="r-Manifold-MixUp",
    paper="Manifold Mixup: Better Representations by Interpolating Hidden States",
    prepare="prepare_cutmix.sh",
    sources=(
        Source("https://www.dropbox.com/sh/bjardjje11pti0g/AABFGW0gNrNE8o8TqUf4-SYSa?dl=0", manual=True),
    ),
    top1=77.50,
    licence="MIT",
)
_regularized(
    "cutmix_resnet50",
    label="r-CutMix",
    paper="CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features",
    prepare="prepare_cutmix.sh",
    sources=(
        Source("https://www.dropbox.com/sh/w8dvfgdc3eirivf/AABnGcTO9wao9xVGWwqsXRala?dl=0", manual=True),
    ),
    top1=78.60,
    licence="MIT",
)
_regularized(
    "relabel_resnet50",
    label="r-ReLabel",
    paper="Re-labeling ImageNet: from Single to Multi-Labels, from Global to Localized Labels",
    prepare="prepare_relabel.sh",
    sources=(
        Source("https://www.dropbox.com/s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=1"),
        Source("https://www.dropbox.com/s/a0jzq3933s1wcig/rn50_relabel_78.9.pth?dl=0", manual=True),
    ),
    top1=78.9,
    key=None,
    licence="Apache-2.0",
)
_resnet50(
    "advrobust_resnet50",
    label="r-Adv-Robust",
    category="regularization",
    paper="Do Adversarially Robust ImageNet Models Transfer Better?",
    prepare="prepare_advrobust.sh",
    unwrap=Unwrap(
        key="model",
        prefix="module.model.",
        others=("module.normalizer.", "module.attacker."),
        allow=("numpy.scalar",),
    ),
    sources=(
        Source(
            "https://huggingface.co/madrylab/robust-imagenet-models/resolve/main/resnet50_l2_eps0.1.ckpt",
            note="where the authors moved the file; the original link expired in 2021",
        ),
    ),
    published=Published(74.78),
    licence="MIT",
    note="trained against L2 perturbations of size 0.1; the network's own input normalisation is done outside",
)
_regularized(
    "mealv2_resnet50",
    label="r-MEAL-v2",
    paper="MEAL V2: Boosting Vanilla ResNet-50 to 80%+ Top-1 Accuracy on ImageNet without Tricks",
    prepare="prepare_mealv2.sh",
    sources=(
        Source("https://github.com/szq0214/MEAL-V2/releases/download/v1.0.0/MEALV2_ResNet50_224.pth"),
        Source("https://1drv.ms/u/s!AtMVZxJ8MfxCi0NGENlMK0pYVDQM?e=GkwZ93", manual=True),
    ),
    top1=80.67,
    key=None,
)

# ---- web data ---------------------------------------------------------------------------------------
_resnet50(
    "mopro_resnet50",
    label="d-MoPro",
    category="web-data",
    paper="MoPro: Webly Supervised Learning with Momentum Prototypes",
    prepare="prepare_mopro.sh",
    unwrap=Unwrap(
        key="state_dict",
        prefix="module.encoder_q.",
        others=("module.encoder_k.", "module.queue", "module.prototypes"),
        drop=("classifier.", "fc1.", "fc2."),
    ),
    sources=(
        Source("https://storage.googleapis.com/sfr-pcl-data-research/MoPro_checkpoint/MoPro_V1_epoch90.tar"),
    ),
    note="query encoder, trained on WebVision V1; the file is a torch file despite its ending",
)
_resnet50(
    "ssup_resnet50",
    label="d-Semi-Sup",
    category="web-data",
    paper=_SEMI,
    prepare="prepare_swsup.sh",
    sources=(
        Source(_FB + "semiweaksupervision/model_files/semi_supervised_resnet50-08389792.pth", "08389792"),
        _timm("resnet50.fb_ssl_yfcc100m_ft_in1k"),
    ),
    published=Published(79.3),
    licence="CC-BY-NC-4.0",
)
_resnet50(
    "swsup_resnet50",
    label="d-Semi-Weakly-Sup",
    category="web-data",
    paper=_SEMI,
    prepare="prepare_swsup.sh",
    sources=(
        Source(
            _FB + "semiweaksupervision/model_files/semi_weakly_supervised_resnet50-16a12f1b.pth", "16a12f1b"
        ),
        _timm("resnet50.fb_swsl_ig1b_ft_in1k"),
    ),
    published=Published(81.2),
    licence="CC-BY-NC-4.0",
)
register(
    ModelSpec(
        name="clip_resnet50",
        label="d-CLIP",
        category="web-data",
        feature_dim=1024,
        comparable=True,
        parameters=38_316_896,
        arch="cog.models.arch.clip:ClipResNet50",
        head="",
        container="torchscript",
        unwrap=Unwrap(
            prefix="visual.",
            others=(
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
        accepts=(Unwrap(prefix="", rename="cog.models.rename:clip_timm"),),
        preprocess=Preprocess(
            mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
        ),
        profiles={"reference-code": _REFERENCE_STATISTICS},
        variants={
            "trunk": Variant(
                "2048-d global average of the last stage, without the attention pooling",
                arch_args={"pool": "average"},
                feature_dim=2048,
                head=("attnpool",),
            )
        },
        paper="Learning Transferable Visual Models From Natural Language Supervision",
        prepare="prepare_clip.sh",
        sources=(
            Source(
                "https://openaipublic.azureedge.net/clip/models/"
                "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762/RN50.pt",
                "afeb0e10f9e5a86da6080e35cf09123aca3b358a0c3e3b6c78a7b63bc04b6762",
            ),
            Source(
                "https://huggingface.co/timm/resnet50_clip.openai/resolve/main/open_clip_model.safetensors",
                note="re-released by timm",
            ),
        ),
        licence="MIT",
        note="image tower only, in float32; 1024-d output of encode_image, as the original toolkit's code gives (the "
        "paper's Table 3 says 2048 for every ResNet: that is the variant trunk, with 23.5M parameters)",
    )
)
