"""Logistic regression on features: training (``sgd``), search (``tune``), the whole (``protocol``)."""
