"""Analyses of features without training a classifier on them, and of trained classifiers beyond their accuracy.

``base`` has what they share, and each other module declares one or two; ``registry`` lists them.
"""
