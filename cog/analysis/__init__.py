"""Analyses of features without training a classifier on them, and of trained classifiers beyond their accuracy.

A file with an ``ANALYSIS`` declares, plans and computes one analysis; ``registry`` lists them, ``task`` has the types
that they share, and ``runner`` does the work, one data set after the other.
"""
