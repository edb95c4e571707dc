"""What is shown of cells: accuracies, differences to a model, losses since IN-1K, ranks, statements.

Every view takes cells, wherever they come from, and gives tables for readers and flat records for programs. A row
of a table is a model *and* a source (runs found on disk, the paper, somebody's file), so that published numbers are
treated exactly as measured ones.
"""
