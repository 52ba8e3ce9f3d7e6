"""Injectors of the seventh held-out set."""
