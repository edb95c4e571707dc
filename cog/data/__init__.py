"""Images: lists of images (``images``), readers (``stores``), pixels (``pixels``), batches (``loader``)."""
