"""Verified data: build and publish datasets, store objects, stage files locally."""
