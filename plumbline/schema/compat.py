"""pydantic 2.5 to the newest: a marker that some versions have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pydantic

if TYPE_CHECKING or hasattr(pydantic, "FailFast"):  # since 2.8
    from pydantic import FailFast as FailFast  # noqa: PLC0414 - exported
else:

    class FailFast:
        """Marker without effect: a list with a wrong item is read to its end before it is refused."""
