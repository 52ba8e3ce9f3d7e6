"""All calls of Prefect's public client API."""
