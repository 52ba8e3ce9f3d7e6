"""Every call of Prefect's public client API."""
