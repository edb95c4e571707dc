"""Concept generalization levels: WordNet, similarity to seen concepts, ranking, levels and splits."""
