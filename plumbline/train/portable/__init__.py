"""Portable arithmetic: training with bitwise equal results on every device."""
