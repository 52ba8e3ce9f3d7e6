"""Portable arithmetic: training with equal bits on every device."""
