"""The oldest pip that this Python brings; `make` installs it, else the environment's own pip is used."""

from __future__ import annotations

import os

from tests.unit.infra.documented_commands import ROOT

OLDEST_PIP = ROOT / ".venv" / "oldest-pip"


def pip_environment() -> dict[str, str]:
    """Return an environment in which `python -m pip` is the oldest pip, without the user's settings."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return own | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": str(OLDEST_PIP)}
