"""Alerts: pure state and messages, and their storage in the central store."""

from plumbline.night.alerts.book import AlertBook as AlertBook
from plumbline.night.alerts.messages import AlertMessage as AlertMessage
from plumbline.night.alerts.messages import left_on_message as left_on_message
from plumbline.night.alerts.messages import missed_message as missed_message
from plumbline.night.alerts.messages import no_verdict_message as no_verdict_message
from plumbline.night.alerts.messages import probe_message as probe_message
from plumbline.night.alerts.messages import unchecked_message as unchecked_message
from plumbline.night.alerts.messages import unplanned_message as unplanned_message
from plumbline.night.alerts.state import AlertState as AlertState
from plumbline.night.alerts.state import Open as Open
from plumbline.night.alerts.state import Outgoing as Outgoing
from plumbline.night.alerts.state import Planned as Planned
from plumbline.night.alerts.state import add_all as add_all
from plumbline.night.alerts.state import add_once as add_once
from plumbline.night.alerts.state import after_failure as after_failure
from plumbline.night.alerts.state import after_success as after_success
from plumbline.night.alerts.state import claim as claim
from plumbline.night.alerts.state import is_last_failure as is_last_failure
from plumbline.night.alerts.state import update as update
from plumbline.night.alerts.state import watch_on as watch_on
