"""Models: one declaration each (``zoo``), how files become modules (``checkpoint``, ``backbone``)."""
