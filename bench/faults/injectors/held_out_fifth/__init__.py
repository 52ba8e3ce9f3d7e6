"""Injectors of the fifth held-out set."""
