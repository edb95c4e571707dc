"""A generated miniature of the benchmark: a control experiment with a known answer.

Images of real WordNet concepts are drawn, not photographed. The traits of a concept are inherited
from its hypernym with a random change at each step, so concepts close in WordNet look alike. A small
network trained on some concepts must then generalize best to the concepts nearest to them: its
accuracy on the seen set is above that on every level, and tends to fall from level 1 to level 5. Other
results on this input show an error in the toolkit. No file is downloaded.
"""
