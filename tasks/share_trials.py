"""Trials of an upgrade that several platforms share: the controller's thread and the worker's end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from plumbline.stores import open_store
from plumbline.upgrade.orders import UpgradeOrder
from plumbline.upgrade.relay import Relay
from plumbline.upgrade.sharing import SharedTrials
from plumbline.upgrade.trials import Trials

__all__ = ["relaying", "share_trials"]

_STEP_SECONDS = 1.0
_END_SECONDS = 60.0


@contextmanager
def relaying(relay: Relay) -> Iterator[None]:
    """Pass messages between the workers until the block ends."""
    stop = threading.Event()

    def pass_on() -> None:
        while not stop.wait(_STEP_SECONDS):
            relay.step()

    thread = threading.Thread(target=pass_on, name="relay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_END_SECONDS)


def share_trials(
    order: UpgradeOrder, say: Callable[[str], None], should_stop: Callable[[], bool], trials: Trials
) -> SharedTrials:
    """Return a worker's trials, of which platforms with the same drift may take some."""
    outbox = open_store(order.outbox)
    return SharedTrials(trials, outbox, order.record_id, say=say, should_stop=should_stop)
