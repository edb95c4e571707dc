"""Images: which files in which order (``image_lists``), their pixels (``pixels``), batches (``loader``)."""
