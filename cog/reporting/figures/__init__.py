"""Figures: functions from means to sheets of panels; :mod:`~cog.reporting.figures.draw` has all of them."""
