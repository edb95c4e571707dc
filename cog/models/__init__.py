"""Models: their declarations (``zoo``), and the loading of files into networks (``checkpoint``, ``backbone``)."""
