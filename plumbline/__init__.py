"""Plumbline: proves that training is the same on every cloud, and names what made it differ."""

__all__ = ["__version__"]

__version__ = "0.1.0"
