"""What features tell without training a classifier on them, and what trained classifiers tell beyond accuracy.

``records`` (files), ``registry`` (which analyses there are), ``job`` (what an analysis is given and gives back) and
``execution`` (doing them, one data set after the other) are shared; every other module is an analysis or its algorithm.
"""
