"""Verified data: datasets are built and published, stores keep them, staging brings them to a local disk."""
