"""Link to a round's report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from plumbline.central import CentralStore
from plumbline.errors import PlumblineError
from plumbline.stores import presign
from plumbline.stores.opening import LONGEST_SECONDS

_SET = "set report_url in the suite for a link that opens in a browser"


@dataclass(frozen=True, slots=True)
class ReportLink:
    """Address of a report, with a note on its validity."""

    url: str
    note: str = ""


def link_to(central: CentralStore, key: str, report_url: str, *, now: datetime | None = None) -> ReportLink:
    """Return the best link to an object of the central store.

    `report_url` is the address of a static site or proxy that serves the store; without it, a presigned link valid for
    a week; else the object's path or URL, with a note.
    """
    if report_url:
        return ReportLink(f"{report_url.rstrip('/')}/{quote(key)}")
    parts = urlsplit(central.store.url)
    if parts.scheme == "file":
        path = (Path(parts.netloc + parts.path) / key).resolve()
        return ReportLink(str(path), f"a path on the controller's disk, not a link: {_SET}")
    address = f"{central.store.url}/{key}"
    try:
        link = presign(central.store, key, LONGEST_SECONDS)
    except PlumblineError as error:
        return ReportLink(address, f"not a link ({error.what}): {_SET}")
    if link is None:
        return ReportLink(address, f"not a link: {_SET}")
    until = (now or datetime.now(UTC)) + timedelta(seconds=LONGEST_SECONDS)
    note = f"the link opens until {until:%Y-%m-%d %H:%M} UTC, or until the credentials that signed it expire"
    return ReportLink(link, note)
