"""The commands that need Prefect; found by their entry points."""
