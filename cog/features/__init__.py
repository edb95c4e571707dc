"""Features of images (X_Y.pth): extracted, written, read and identified; rows of classifiers."""
