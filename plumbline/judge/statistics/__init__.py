"""Stateless statistics: distributions, samples, paired runs, equivalence, change points. Pure."""
