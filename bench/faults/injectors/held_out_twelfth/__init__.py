"""Injectors of the twelfth held-out set."""
