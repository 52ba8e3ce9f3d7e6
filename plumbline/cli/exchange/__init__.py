"""Nights of a suite in the formats of other tools."""
