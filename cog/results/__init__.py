"""Records of results: reading, queries, comparisons, published numbers, exchange; without torch."""
