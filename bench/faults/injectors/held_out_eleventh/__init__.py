"""Injectors of the tenth held-out set."""
