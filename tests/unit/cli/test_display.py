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


def test_a_line_is_printed_when_a_run_moves_on_and_none_goes_back() -> None:
    """A round with two runs of a platform printed its states in turn, 511 lines of them."""
    shown = StringIO()
    with Display("round r", Console(file=shown, width=100)) as display:
        for step in range(20):
            display.platform("azure", "done", run="1")
            display.platform(
                "azure", "running", run="2", title="bert rerun", text=f"probe {step}/20" if step % 2 else ""
            )
        display.platform("azure", "starting", run="2", title="bert rerun")
        display.platform("azure", "running", run="2", title="bert rerun", text="learn 1/9")
        display.platform("azure", "running", run="2", title="bert rerun", text="probe 20/20")
        display.platform("azure", "done", run="2", title="bert rerun")
    lines = [line.partition(" s  ")[2] for line in shown.getvalue().splitlines()]
    assert lines == [
        "round r",
        "azure: done",
        "azure: trains (bert rerun)",
        "azure: trains probe (bert rerun)",
        "azure: trains learn (bert rerun)",
        "azure: done (bert rerun)",
    ]
