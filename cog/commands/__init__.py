"""The scripts' mains; each ``cli`` is a console script, each top-level script a two-line call of it."""
