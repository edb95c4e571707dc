"""Images: data sets, lists of images (``images``), archives, pixels, and batches (``loader``)."""
