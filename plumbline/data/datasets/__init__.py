"""Datasets: generated or imported, built reproducibly, and published to stores."""

from plumbline.data.datasets.build import MANIFEST_NAME as MANIFEST_NAME
from plumbline.data.datasets.build import build_dataset as build_dataset
from plumbline.data.datasets.build import read_manifest as read_manifest
from plumbline.data.datasets.publish import Published as Published
from plumbline.data.datasets.publish import publish as publish
from plumbline.data.datasets.publish import publish_file as publish_file
from plumbline.data.datasets.publish import publish_weights as publish_weights
from plumbline.data.datasets.publish import verify_dataset as verify_dataset
from plumbline.data.datasets.publish import weights_key as weights_key
from plumbline.data.datasets.receipts import row_origins as row_origins
from plumbline.data.datasets.spec import architecture as architecture
from plumbline.data.datasets.spec import make_spec as make_spec
