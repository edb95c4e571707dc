"""A generated miniature of the benchmark: a control experiment with a known answer.

Images of real WordNet concepts are drawn, not photographed. What a concept looks like is inherited
from its hypernym with a random change at each step, so concepts close in WordNet look alike. A small
network trained on some of them must then generalise best to the concepts nearest to those it knows:
accuracy on the seen set lies above every level, and tends to fall from level 1 to level 5. A toolkit
that shows anything else on this input is broken. Nothing is downloaded.
"""
