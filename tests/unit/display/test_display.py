"""Progress display of a round, with and without a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from plumbline.cli.display import Display


@pytest.mark.parametrize("terminal", [False, True])
def test_the_rounds_name_is_on_the_screen_or_in_the_log_before_anything_else(terminal: bool) -> None:
    shown = StringIO()
    with Display("round 20261120-020000-7f3a", Console(file=shown, force_terminal=terminal, width=100)) as display:
        display.phase("stack")
    first, *others = shown.getvalue().splitlines()
    if terminal:
        assert "round 20261120-020000-7f3a" in shown.getvalue()
    else:
        # A killed command leaves nothing but its log, and `--round` asks for this name.
        assert first.endswith(" s  round 20261120-020000-7f3a")
        assert [line.rpartition(" ")[2] for line in others] == ["stack"]
