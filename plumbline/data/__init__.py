"""Datasets: generated or imported, built to the same bytes every time, and published to every platform's store."""

from plumbline.data.build import MANIFEST_NAME, build_dataset, read_manifest

__all__ = ["MANIFEST_NAME", "build_dataset", "read_manifest"]
