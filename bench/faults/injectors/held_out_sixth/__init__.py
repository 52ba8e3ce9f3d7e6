"""Injectors of the sixth held-out set."""
