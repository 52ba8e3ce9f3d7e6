"""Injectors of the ninth held-out set."""
