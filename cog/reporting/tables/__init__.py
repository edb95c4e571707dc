"""Tables: accuracies, differences to a model, losses since IN-1K, ranks, other experiments, comparisons.

Every view takes averages of any source and returns tables for readers and flat records for programs. A row of a table
is a model *and* a source (runs on disk, the paper, an imported file), so that published numbers are treated exactly
as measured ones. Views choose rows, columns and the displayed number, and
:func:`cog.reporting.tables.pivot.tabulate` arranges them.
"""
