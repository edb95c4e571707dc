"""Tables: accuracies, differences to a model, losses since IN-1K, ranks, other experiments, comparisons.

Every view takes averages, wherever they come from, and gives tables for readers and flat records for programs. A row
of a table is a model *and* a source (runs found on disk, the paper, somebody's file), so that published numbers are
treated exactly as measured ones. Views choose rows, columns and the number shown, and
:func:`cog.reporting.tables.pivot.tabulate` arranges them.
"""
