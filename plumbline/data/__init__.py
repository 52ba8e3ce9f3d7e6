"""Datasets: generated or imported, built reproducibly, and published to stores."""

from plumbline.data.build import MANIFEST_NAME as MANIFEST_NAME
from plumbline.data.build import build_dataset as build_dataset
from plumbline.data.build import read_manifest as read_manifest
from plumbline.data.publish import Published as Published
from plumbline.data.publish import publish as publish
from plumbline.data.publish import publish_weights as publish_weights
from plumbline.data.publish import verify_dataset as verify_dataset
from plumbline.data.publish import weights_key as weights_key
from plumbline.data.receipts import row_origins as row_origins
from plumbline.data.spec import architecture as architecture
from plumbline.data.spec import make_spec as make_spec
