"""Images: ordered lists of files (``image_lists``), pixels (``pixels``), batches of pixels (``loader``)."""
