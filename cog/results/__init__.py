"""Records of results: reading, querying, comparing, published numbers, exchange; imports no torch."""
