"""The classifiers on features: the protocol, its search and its engine."""
