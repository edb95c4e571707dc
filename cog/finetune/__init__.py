"""The fine-tuning control (paper, supplement C.2, Fig. 6): a whole network trained on one data set, with a classifier.

``recipe`` (settings and random choices), ``images`` (training images), ``network`` (backbone with a new classifier),
``parallel`` (processes), ``trainer`` (SGD steps, saved states), ``evaluation`` and ``training`` (epochs); ``plan``
checks the input, ``job`` does a run.
"""
