"""Feature files (X_Y.pth): extraction and its shards, feature sets, PCA."""
