"""Proof that training is the same on every cloud, with causes of drift."""

__version__ = "0.1.0"
