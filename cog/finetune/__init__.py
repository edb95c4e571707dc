"""The fine-tuning control (paper, supplement C.2, Fig. 6): a whole network trained on one data set, with a classifier.

``recipe`` (what is done), ``streams`` (random choices), ``augment`` and ``loader`` (images), ``network`` (backbone with
a new classifier), ``parallel`` (processes), ``training`` and ``evaluation`` (the work), ``state`` (going on after an
interruption), ``output`` (files).
"""
