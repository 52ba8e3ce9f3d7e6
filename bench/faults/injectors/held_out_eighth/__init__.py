"""Injectors of the eighth held-out set."""
