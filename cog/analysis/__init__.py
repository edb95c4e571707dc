"""Analyses of features without training a classifier on them, and of trained classifiers beyond their accuracy.

A module with an ``ANALYSIS`` declares, plans and computes one analysis; ``registry`` lists the analyses, ``task`` has
the types that they share, and ``runner`` computes the results, one data set after the other.
"""
