"""Models: the rows of the paper's (``paper_models``), and loading by name (``choice``)."""
