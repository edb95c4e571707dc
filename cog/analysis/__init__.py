"""Analyses: functions from features, or from trained classifiers, to numbers."""
