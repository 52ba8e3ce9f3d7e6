"""Commands that need Prefect, which each imports only when it runs."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("prefect") is None:
    raise ModuleNotFoundError("No module named 'prefect'", name="prefect")
