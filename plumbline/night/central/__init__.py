"""Transfer of records: platform outboxes, collection, and the central store."""

from plumbline.night.central.central_store import CentralStore as CentralStore
from plumbline.night.central.central_store import round_key as round_key
from plumbline.night.central.central_store import secret_key as secret_key
from plumbline.night.central.gathering import Gathered as Gathered
from plumbline.night.central.gathering import find_record as find_record
from plumbline.night.central.gathering import gather as gather
from plumbline.night.central.outbox import fetch_record as fetch_record
from plumbline.night.central.outbox import publish_record as publish_record
from plumbline.night.central.outbox import shared_checkpoint as shared_checkpoint
from plumbline.night.central.outbox import upload_policy as upload_policy
