"""Concept generalization levels: WordNet, similarity to the seen concepts, ranking, levels and splits."""
