"""Datasets: generated or imported, built reproducibly, and published to stores."""

from plumbline.data.build import MANIFEST_NAME, build_dataset, read_manifest
from plumbline.data.publish import Published, publish, publish_weights, weights_key
from plumbline.data.receipts import row_origins
from plumbline.data.spec import architecture, make_spec

__all__ = [
    "MANIFEST_NAME",
    "Published",
    "architecture",
    "build_dataset",
    "make_spec",
    "publish",
    "publish_weights",
    "read_manifest",
    "row_origins",
    "weights_key",
]
