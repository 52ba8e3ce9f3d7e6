"""Commands that need Prefect: without it none loads, although each imports it only where it is used."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("prefect") is None:
    raise ModuleNotFoundError("No module named 'prefect'", name="prefect")
