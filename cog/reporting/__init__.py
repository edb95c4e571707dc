"""Presentation of results: views, tables, figures, the report page."""
