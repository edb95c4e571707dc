"""The fine-tuning control (paper, supplement C.2, Fig. 6): a whole network trained on one data set, with a classifier.

``recipe`` (settings and random choices), ``images`` (training images), ``network`` (backbone with a new classifier),
``parallel`` (processes), ``training`` and ``evaluation``, ``state`` (saved for a continuation), ``output`` (files);
``plan`` checks the input, ``job`` does a run.
"""
