"""Commands that need Prefect, found by their entry points."""
