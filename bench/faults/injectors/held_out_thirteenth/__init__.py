"""Injectors of the thirteenth held-out set."""
