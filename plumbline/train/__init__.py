"""Trainer: one training in its own process; the only place with torch."""
