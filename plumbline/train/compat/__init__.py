"""Differences between versions of the libraries: one module per library, and no version check elsewhere."""
