"""WordNet 3.0 nouns: the graph, information content, similarity measures, text embeddings.

This package imports neither torch nor NLTK.
"""

from __future__ import annotations

from cog.levels.wordnet.graph import NounGraph
from cog.levels.wordnet.reader import load_wordnet

__all__ = ["NounGraph", "load_wordnet"]
