"""Compatibility with library versions: one module per library, no version checks elsewhere."""
