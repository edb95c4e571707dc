"""A generated miniature of the benchmark: a control experiment with a known answer."""
