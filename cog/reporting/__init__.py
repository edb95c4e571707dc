"""Views of records and nothing else: tables, figures and the report page."""
