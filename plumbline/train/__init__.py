"""Trainer process: runs one training; the only package that imports torch."""
