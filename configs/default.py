"""All configuration keys with their defaults.

Precedence: this file < the model's own preprocessing (cog/models/zoo.py) < ``<model_name>.yaml`` in
this folder < ``--config FILE`` < ``KEY VALUE`` pairs on the command line.
"""

from yacs.config import CfgNode

_C = CfgNode()

# Feature extraction.
_C.FT_EXTRACT = CfgNode()
# Length of the shortest image side after bicubic resizing, and of the sides of the centre crop, in pixels.
_C.FT_EXTRACT.IMAGE_RESIZE_SIZE = 224
_C.FT_EXTRACT.IMAGE_CROP_SIZE = 224
# Of the resizing: bicubic, bilinear, lanczos, nearest, box or hamming (Pillow's).
_C.FT_EXTRACT.IMAGE_INTERPOLATION = "bicubic"
# Resize both sides to IMAGE_RESIZE_SIZE, whatever the image's shape, instead of the shortest one.
_C.FT_EXTRACT.IMAGE_SQUASH = False
# Where the four keys above come from for models that declare them: "protocol", as in the paper (shortest side resized
# to the crop, bicubic), or "model", the crop percentage and interpolation of the model's authors.
_C.FT_EXTRACT.PREPROCESS = "protocol"
# Of models that give tokens: "default" (what the model's own classifier gets), "cls", "mean" (of the patches' tokens)
# or "cls+mean" (both, one after the other).
_C.FT_EXTRACT.POOLING = "default"
# Per-channel (RGB) statistics; pixels are in [0, 1] before (x - MEAN) / STD.
_C.FT_EXTRACT.IMAGE_NORM = CfgNode()
_C.FT_EXTRACT.IMAGE_NORM.MEAN = [0.485, 0.456, 0.406]
_C.FT_EXTRACT.IMAGE_NORM.STD = [0.229, 0.224, 0.225]
# Where the paper, the weights and the original toolkit's code disagree about a model (prepare_models/README.md
# lists the cases): "authors" is what the weights were trained for, "reference-code" what that code computes.
_C.FT_EXTRACT.PROFILE = "authors"
# Another output or input of the same network, for models that have one: "trunk" of clip_resnet50 is the 2048-d
# average before the attention pooling. "" is the model's own.
_C.FT_EXTRACT.VARIANT = ""
# Truncated files: False counts them as failed images (Pillow's default), True fills the missing part
# with grey, as the original toolkit does.
_C.FT_EXTRACT.LOAD_TRUNCATED_IMAGES = False
# "exact": the pixels of Pillow, bit for bit. Nothing else any more; the key is for old command lines.
_C.FT_EXTRACT.DECODE = "exact"
# Images per forward pass on a GPU, and decoded at a time.
_C.FT_EXTRACT.BATCH_SIZE = 128
# Image decoding threads, at most one per available processor; 0 decodes in the main thread.
_C.FT_EXTRACT.N_WORKERS = 8
# Decode in processes instead of threads, started by "fork", "spawn" or "forkserver". "": threads.
_C.FT_EXTRACT.WORKER_START_METHOD = ""
# "fp32": exact float32 (TF32 off). "tf32": products of NVIDIA GPUs since Ampere, operands rounded to 10 bits.
# "fp16" / "bf16": automatic mixed precision.
_C.FT_EXTRACT.PRECISION = "fp32"
# Of the features in X_Y.pth: "float32", or rounded to "float16" (values up to 65504) or "bfloat16": half the disk.
# Everything here reads all three; the original toolkit reads float32.
_C.FT_EXTRACT.SAVE_DTYPE = "float32"
# Extraction saves what is done after so many images (several processes claim at most so many at a time) ...
_C.FT_EXTRACT.SHARD_ROWS = 8192
# ... or so many seconds: a kill loses at most that.
_C.FT_EXTRACT.SHARD_SECONDS = 120.0
# Run the network through torch.compile (needs a C++ compiler on a CPU; pays off on long runs).
_C.FT_EXTRACT.COMPILE = False

# Evaluation.
_C.EVAL = CfgNode()
# Result folders are named eval_<NAME>[_pca<PCA_DIM>][_max<MAX_PER_CLASS>][_N<N_SHOT>]/seed-<SEED>. With CLF.TYPE mlp or
# mlp_noact the default becomes that word.
_C.EVAL.NAME = "logreg"
# Of every random choice: validation split, few-shot draw, search, initial weights, order of the samples.
_C.EVAL.SEED = 22

# The classifier.
_C.CLF = CfgNode()
# "logreg": logistic regression trained by SGD. "mlp": MLP_LAYERS hidden layers of MLP_HIDDEN units with ReLU;
# "mlp_noact": the same without an activation. Both have defaults of their own, which any given value replaces:
# NORM_FTS False, LR_INTV (1e-1, 1e2) and (1e-2, 1e1), WD_INTV (1e-8, 1e-4).
_C.CLF.TYPE = "logreg"
# Units of each hidden layer of an MLP, and how many there are.
_C.CLF.MLP_HIDDEN = 2048
_C.CLF.MLP_LAYERS = 2
# First principal components of the training features that the classifier sees; 0: the features as they are.
_C.CLF.PCA_DIM = 0
# l2-normalization (NORM_FTS) with PCA_DIM: "after", of the components, or "before", of the features, whose components
# then stay as they are. The paper's first version does not say.
_C.CLF.PCA_NORM = "after"
# At most this many training images per class, a choice that is the same for every seed; 0: all.
_C.CLF.MAX_PER_CLASS = 0
# Samples per SGD step.
_C.CLF.BATCH_SIZE = 1024
# Passes over the training set.
_C.CLF.N_EPOCHS = 100
# Hyper-parameter trials; 0 needs --lr and --wd.
_C.CLF.N_TRIALS = 30
# Training images per class; 0 uses all.
_C.CLF.N_SHOT = 0
# Fraction of each class held out of the training set to score trials.
_C.CLF.VAL_PERC = 0.2
# l2-normalize features (with PCA_DIM: see PCA_NORM).
_C.CLF.NORM_FTS = True
# Search intervals, both log-uniform.
_C.CLF.LR_INTV = (1e-1, 1e2)
_C.CLF.WD_INTV = (1e-12, 1e-4)

# Of the matrix products in training: "fp32", "tf32" (NVIDIA GPUs), "bf16", or "auto": the fastest one on the device
# that moves accuracies by less than another seed does (docs/performance.md, "Precision"). Everything else is float32.
_C.CLF.PRECISION = "auto"
# "sequential": every trial after the random ones at the start waits for the one before, as in the paper's toolkit.
# "batched": rounds of TRIALS_PER_ROUND trials that do not wait for each other (they can be trained together).
_C.CLF.SEARCH = "sequential"
# Trials that a batched search draws at once; more than 5 was measured to cost accuracy.
_C.CLF.TRIALS_PER_ROUND = 5
# Which of the trials with the highest validation accuracy is taken: the "first", as Optuna does, or the one with the
# lowest validation "loss".
_C.CLF.TIE_BREAK = "first"
# The only value that is left; earlier versions had another one.
_C.CLF.SOLVER = "sgd"
# Likewise.
_C.CLF.PRUNER = "none"

# Fine-tuning control (finetune.py). The paper shows a fine-tuned ResNet-50 (supplement C.2, Fig. 6) without any
# hyper-parameter: this recipe is ours, a plain one, sized for one node of 8 GPUs on a level (1.1 M images).
_C.FINETUNE = CfgNode()
# Passes over the training set; an incomplete last batch of an epoch is left out.
_C.FINETUNE.N_EPOCHS = 30
# Images per SGD step, all processes together.
_C.FINETUNE.BATCH_SIZE = 1024
# Images per forward pass; batch norm sees so many. BATCH_SIZE is made of such passes, shared among the processes, so
# that the number of processes changes the result by rounding only.
_C.FINETUNE.BATCH_PER_DEVICE = 128
# Highest learning rate for 256 images per step; what is used is LR * BATCH_SIZE / 256 (Goyal et al., 2017).
_C.FINETUNE.LR = 0.01
# Of SGD.
_C.FINETUNE.MOMENTUM = 0.9
# Of all parameters.
_C.FINETUNE.WEIGHT_DECAY = 1e-4
# Epochs of linear warm-up (a fraction is fine); then cosine decay to 0, step by step.
_C.FINETUNE.WARMUP_EPOCHS = 1.0
# Gradients are scaled down to this norm; 0: never. Transformers may want 1.
_C.FINETUNE.CLIP_NORM = 0.0
# Random crops, as torchvision's RandomResizedCrop draws them, resized (bicubic) to FT_EXTRACT.IMAGE_CROP_SIZE: share of
# the image's area that they cover.
_C.FINETUNE.CROP_SCALE = (0.08, 1.0)
# Width / height of the crops (the default: 3/4 to 4/3).
_C.FINETUNE.CROP_RATIO = (0.75, 1.3333333333333333)
# Mirror half of them.
_C.FINETUNE.FLIP = True
# "fp32", or automatic mixed precision "bf16" or "fp16" (with loss scaling). "auto": on GPUs bf16 or, before Ampere,
# fp16; on a CPU fp32. Weights, updates and test scores are float32 in every mode.
_C.FINETUNE.PRECISION = "auto"
# Minutes between saved states, beside one after every epoch.
_C.FINETUNE.SAVE_MINUTES = 10.0

# Building the levels (build_levels.py).
_C.LEVELS = CfgNode()
# Concepts with fewer images are not eligible (732 training + 50 test).
_C.LEVELS.MIN_IMAGES = 782
# Images per concept: N_TEST drawn for testing, the rest for training, at most MAX_TRAIN of them.
_C.LEVELS.N_TEST = 50
_C.LEVELS.MAX_TRAIN = 1300
# Synsets that are not eligible, with everything below them: person.n.01.
_C.LEVELS.EXCLUDED_ROOTS = ["n00007846"]
# Folders listed, or images decoded, at the same time.
_C.LEVELS.N_WORKERS = 8

# Analyses of features (analyze_features.py).
_C.ANALYSIS = CfgNode()
# Clusters of k-means; 0 for the number of classes in the training features.
_C.ANALYSIS.KMEANS_K = 0
# Repetitions of k-means; the one of lowest inertia gives the values.
_C.ANALYSIS.KMEANS_SEEDS = [22, 37, 45]
# Most iterations of Lloyd's algorithm (scikit-learn's max_iter).
_C.ANALYSIS.KMEANS_ITERATIONS = 300
# It ends earlier when the centres move less than this (scikit-learn's tol: relative to the variance of the features).
_C.ANALYSIS.KMEANS_TOLERANCE = 1e-4
# Exponent of the distances in alignment (Wang and Isola 2020).
_C.ANALYSIS.ALIGN_ALPHA = 2.0
# Factor of the squared distances in uniformity (likewise).
_C.ANALYSIS.UNIFORM_T = 2.0
# Neighbours of k-nearest-neighbour classifiers.
_C.ANALYSIS.KNN_K = [1, 5, 10, 20, 100, 200]
# T of the weights exp(cosine / T) of neighbours.
_C.ANALYSIS.KNN_TEMPERATURE = 0.07
