"""All configuration keys with their defaults.

Precedence: this file < the model's own preprocessing (cog/models/paper_models.py) < its entry in
``--models_file`` < ``<model_name>.yaml`` in this folder < ``KEY VALUE`` pairs on the command line.
"""

from yacs.config import CfgNode

from cog.constants import CLASSIFIERS, GEOMETRIES, POOLINGS

_C = CfgNode()

# Feature extraction.
_C.FT_EXTRACT = CfgNode()
# Length of the shortest image side after resizing, and of the sides of the center crop, in pixels.
_C.FT_EXTRACT.IMAGE_RESIZE_SIZE = 224
_C.FT_EXTRACT.IMAGE_CROP_SIZE = 224
# Filter of the resizing: bicubic, bilinear, lanczos, nearest, box or hamming (those of Pillow).
_C.FT_EXTRACT.IMAGE_INTERPOLATION = "bicubic"
# Resize both sides to IMAGE_RESIZE_SIZE and ignore the aspect ratio, instead of resizing the shortest side.
_C.FT_EXTRACT.IMAGE_SQUASH = False
# Source of the four keys above for models that declare a preprocessing: "protocol" (as in the paper:
# shortest side resized to the crop, bicubic) or "model" (crop percentage and interpolation of the model's
# authors).
_C.FT_EXTRACT.PREPROCESS = "protocol"
# Pooling of models that return tokens: "default" (the input of the model's own classifier), "cls", "mean"
# (of the patches' tokens), "cls+mean" (both, concatenated), or "last4" (class tokens of the last 4
# blocks; also "last2" to "last12").
_C.FT_EXTRACT.POOLING = "default"
# Per-channel (RGB) statistics; pixels are in [0, 1] before (x - MEAN) / STD.
_C.FT_EXTRACT.IMAGE_NORM = CfgNode()
_C.FT_EXTRACT.IMAGE_NORM.MEAN = [0.485, 0.456, 0.406]
_C.FT_EXTRACT.IMAGE_NORM.STD = [0.229, 0.224, 0.225]
# Truncated files: False counts them as failed images (Pillow's default), True fills the missing part
# with gray, as the authors' toolkit does.
_C.FT_EXTRACT.LOAD_TRUNCATED_IMAGES = False
# Images per forward pass on a GPU, and per batch of decoded images.
_C.FT_EXTRACT.BATCH_SIZE = 128
# Image decoding processes; -1: as many as this process has processors (never more); 0 decodes in the main
# process.
_C.FT_EXTRACT.N_WORKERS = -1
# "fp32": exact float32 (TF32 off). "tf32": products on NVIDIA GPUs since Ampere with operands rounded to
# 10 bits. "fp16" / "bf16": automatic mixed precision.
_C.FT_EXTRACT.PRECISION = "fp32"
# Type of the features in X_Y.pth: "float32", or rounded to "float16" (values up to 65504) or "bfloat16",
# which take half the space on the disk. This toolkit reads all three types; the authors' toolkit reads
# float32.
_C.FT_EXTRACT.SAVE_DTYPE = "float32"

# Evaluation.
_C.EVAL = CfgNode()
# Result folders are named eval_<NAME>[_max<MAX_PER_CLASS>][_N<N_SHOT>]/seed-<SEED>. With CLF.TYPE mlp or
# mlp_noact, the default name is that type.
_C.EVAL.NAME = "logreg"
# Seed of every random choice: validation split, few-shot draw, search, initial weights, order of the samples.
_C.EVAL.SEED = 22

# The classifier.
_C.CLF = CfgNode()
# "logreg": logistic regression trained by SGD. "mlp": MLP_LAYERS hidden layers of MLP_HIDDEN units with ReLU;
# "mlp_noact": the same without an activation. Both have their own defaults, which given values replace:
# NORM_FTS False, LR_INTV (1e-1, 1e2) for mlp and (1e-2, 1e1) for mlp_noact, WD_INTV (1e-8, 1e-4).
_C.CLF.TYPE = "logreg"
# Number of units of each hidden layer of an MLP, and number of hidden layers.
_C.CLF.MLP_HIDDEN = 2048
_C.CLF.MLP_LAYERS = 2
# Largest number of training images per class, the same images for every seed; 0: all.
_C.CLF.MAX_PER_CLASS = 0
# Samples per SGD step.
_C.CLF.BATCH_SIZE = 1024
# Passes over the training set.
_C.CLF.N_EPOCHS = 100
# Hyper-parameter trials; 0: no search, with one value in each interval below: LR_INTV (10,10) WD_INTV
# (1e-6,1e-6).
_C.CLF.N_TRIALS = 30
# Training images per class; 0 uses all.
_C.CLF.N_SHOT = 0
# Fraction of each class held out of the training set to score trials.
_C.CLF.VAL_PERC = 0.2
# l2-normalize features.
_C.CLF.NORM_FTS = True
# Search intervals, both log-uniform.
_C.CLF.LR_INTV = (1e-1, 1e2)
_C.CLF.WD_INTV = (1e-12, 1e-4)

# Precision of the matrix products in training: "fp32", "tf32" (NVIDIA GPUs), "bf16", or "auto": the
# fastest one on the device that changes accuracies by less than another seed does (docs/protocol.md,
# "Precision"). All other computations are in float32.
_C.CLF.PRECISION = "auto"

# Fine-tuning control (finetune.py). The paper shows a fine-tuned ResNet-50 (supplement C.2, Fig. 6)
# without any hyper-parameter: we chose these plain ones for one node of 8 GPUs and the images of a level
# (1.1 M).
_C.FINETUNE = CfgNode()
# Passes over the training set; an incomplete last batch of an epoch is left out.
_C.FINETUNE.N_EPOCHS = 30
# Images per SGD step of all processes together.
_C.FINETUNE.BATCH_SIZE = 1024
# Images per forward pass, and therefore in the statistics of batch norm. A step of BATCH_SIZE images
# consists of such passes, which the processes share.
_C.FINETUNE.BATCH_PER_DEVICE = 128
# Highest learning rate for 256 images per step; the rate of a step is LR * BATCH_SIZE / 256 (Goyal et
# al., 2017).
_C.FINETUNE.LR = 0.01
# Momentum of SGD.
_C.FINETUNE.MOMENTUM = 0.9
# Weight decay of all parameters.
_C.FINETUNE.WEIGHT_DECAY = 1e-4
# Epochs of linear warm-up (fractions are allowed); after that, cosine decay to 0 in every step.
_C.FINETUNE.WARMUP_EPOCHS = 1.0
# Largest norm of the gradient, larger gradients are scaled down to it; 0: no limit. Transformers may need 1.
_C.FINETUNE.CLIP_NORM = 0.0
# Random crops are drawn as by torchvision's RandomResizedCrop and resized (bicubic) to
# FT_EXTRACT.IMAGE_CROP_SIZE: smallest and largest share of the image's area.
_C.FINETUNE.CROP_SCALE = (0.08, 1.0)
# "fp32", or automatic mixed precision "bf16" or "fp16" (with loss scaling). "auto": on GPUs bf16 or,
# before Ampere, fp16; on a CPU fp32. Weights, updates and test scores are float32 in every mode.
_C.FINETUNE.PRECISION = "auto"

# Building the levels (build_levels.py).
_C.LEVELS = CfgNode()
# Concepts with fewer images are not eligible (732 training + 50 test).
_C.LEVELS.MIN_IMAGES = 782
# Images per concept: N_TEST are drawn for testing, and at most MAX_TRAIN of the others are for training.
_C.LEVELS.N_TEST = 50
_C.LEVELS.MAX_TRAIN = 1300
# Synsets that are not eligible, with all synsets below them: person.n.01.
_C.LEVELS.EXCLUDED_ROOTS = ["n00007846"]

# Analyses of features (analyze_features.py).
_C.ANALYSIS = CfgNode()
# Number of clusters of k-means; 0: the number of classes in the training features.
_C.ANALYSIS.KMEANS_K = 0
# Seeds of the repetitions of k-means; the values are those of the repetition with the lowest inertia.
_C.ANALYSIS.KMEANS_SEEDS = [22, 37, 45]
# Numbers of neighbors of k-nearest-neighbor classifiers.
_C.ANALYSIS.KNN_K = [1, 5, 10, 20, 100, 200]

_COUNT, _UNSIGNED, _NOT_NEGATIVE = (1, 2**31 - 1), (0, 2**32 - 1), (0, 1e300)
_POSITIVE, _BELOW_1 = (1e-300, 1e300), (0, 1 - 1e-9)

#: Allowed values by key: names, or lowest and highest number, also of each number in a list. Lists of whole
#: numbers have different ones; others have as many as the default, those in parentheses ascending.
RANGES = {
    "FT_EXTRACT.IMAGE_RESIZE_SIZE": _COUNT,
    "FT_EXTRACT.IMAGE_CROP_SIZE": _COUNT,
    "FT_EXTRACT.IMAGE_INTERPOLATION": ("bicubic", "bilinear", "lanczos", "nearest", "box", "hamming"),
    "FT_EXTRACT.PREPROCESS": GEOMETRIES,
    "FT_EXTRACT.POOLING": POOLINGS,
    "FT_EXTRACT.IMAGE_NORM.MEAN": (0, 1),
    "FT_EXTRACT.IMAGE_NORM.STD": (1e-300, 1),
    "FT_EXTRACT.BATCH_SIZE": _COUNT,
    "FT_EXTRACT.N_WORKERS": (-1, 2**15),
    "FT_EXTRACT.PRECISION": ("fp32", "tf32", "fp16", "bf16"),
    "FT_EXTRACT.SAVE_DTYPE": ("float32", "float16", "bfloat16"),
    "EVAL.SEED": _UNSIGNED,
    "CLF.TYPE": tuple(CLASSIFIERS),
    "CLF.MLP_HIDDEN": (1, 2**16 - 1),
    "CLF.MLP_LAYERS": (1, 2**16 - 1),
    "CLF.MAX_PER_CLASS": (0, 2**31 - 1),
    "CLF.BATCH_SIZE": _COUNT,
    "CLF.N_EPOCHS": _COUNT,
    "CLF.N_TRIALS": _UNSIGNED,
    "CLF.N_SHOT": _UNSIGNED,
    "CLF.VAL_PERC": (1e-9, 1 - 1e-9),
    "CLF.LR_INTV": _POSITIVE,
    "CLF.WD_INTV": _POSITIVE,
    "CLF.PRECISION": ("auto", "fp32", "tf32", "bf16"),
    "FINETUNE.N_EPOCHS": _COUNT,
    "FINETUNE.BATCH_SIZE": _COUNT,
    "FINETUNE.BATCH_PER_DEVICE": _COUNT,
    "FINETUNE.LR": _POSITIVE,
    "FINETUNE.MOMENTUM": _BELOW_1,
    "FINETUNE.WEIGHT_DECAY": _NOT_NEGATIVE,
    "FINETUNE.WARMUP_EPOCHS": _NOT_NEGATIVE,
    "FINETUNE.CLIP_NORM": _NOT_NEGATIVE,
    "FINETUNE.CROP_SCALE": (1e-300, 1),
    "FINETUNE.PRECISION": ("auto", "fp32", "bf16", "fp16"),
    "LEVELS.MIN_IMAGES": _COUNT,
    "LEVELS.N_TEST": _COUNT,
    "LEVELS.MAX_TRAIN": _COUNT,
    "ANALYSIS.KMEANS_K": (0, 2**31 - 1),
    "ANALYSIS.KMEANS_SEEDS": _UNSIGNED,
    "ANALYSIS.KNN_K": _COUNT,
}
