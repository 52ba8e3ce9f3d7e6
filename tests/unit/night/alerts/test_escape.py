"""Escaping of untrusted text for every channel."""

from __future__ import annotations

import html

import pytest
import rich.text

from plumbline.night.rounds.outcome import headline
from plumbline.report.terminal import verdict_table
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.escape import Channel, clean, escape, one_line, printable, shorten
from plumbline.schema.verdict import RoundVerdict

EVIL = "out of memory <img src=x onerror=a()> <!channel> @everyone [pay](http://x.example) \x1b[2J\x9b1m \u202egnp"
CHANNELS: tuple[Channel, ...] = ("plain", "html", "chat", "log")


@pytest.mark.parametrize("channel", CHANNELS)
def test_no_channel_gets_a_control_or_a_reversing_character(channel: Channel) -> None:
    shown = escape(EVIL, channel)
    assert not set(shown) & {"\x1b", "\x9b", "\u202e", "\x00"}
    assert shown.startswith("out of memory")


def test_mail_shows_tags_and_runs_none_and_keeps_its_lines() -> None:
    shown = escape("a <img src=x>\nb & c", "html")
    assert "<img" not in shown
    assert html.unescape(shown.replace("<br>", "")) == "a <img src=x>\nb & c"
    assert "<br>" in shown


@pytest.mark.parametrize("text", ["<!channel>", "!channel>", "<@U123>", "&lt;!here&gt;", "<https://x.example|bank>"])
def test_a_chat_is_given_no_mention_and_no_disguised_link(text: str) -> None:
    shown = escape(text, "chat")
    assert not {"<", ">"} & set(shown)
    assert "!channel" not in shown
    assert "!here" not in shown
    assert "@U123" not in shown


def test_a_chat_is_given_no_link_no_mention_and_no_tag() -> None:
    shown = escape(EVIL, "chat")
    assert "](" not in shown
    assert "[pay]" in shown
    assert "@everyone" not in shown
    assert "<" not in shown


def test_words_numbers_and_lines_stay_as_they_are() -> None:
    text = "probe.forward: 0.0003 relative, the limit is 2e-06\n\tround: 20261122-020000-abc"
    assert [escape(text, channel) for channel in ("plain", "chat")] == [text, text]
    assert printable("Zürich, 東京") == "Zürich, 東京"


COMMANDS = ["::error::no", "  ::add-mask::x", "##[group]no", "##vso[task.complete result=Failed;]", "##teamcity[x]"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_records_text_is_no_command_of_a_ci_runner(command: str) -> None:
    """A runner executes such a line of a job's log, wherever the line comes from."""
    shown = [printable(f"first\n{command}"), one_line(f"{command}\nnext"), clean(command)]
    shown.append(str(InvalidInputError(command)))
    for text in "\n".join(shown).splitlines():
        assert not text.lstrip().startswith("::")
        assert "##" not in text
    assert printable("at::native::add") == "at::native::add"


def test_a_rounds_state_and_table_execute_nothing_of_a_records_text() -> None:
    why = "\x1b[2J\x1b]0;pwned\x07 " + "x" * 120 + " ::error::no " + "y" * 180 + "::error::no\n::error::no"
    finding = {"check": "record.exit", "outcome": "invalid", "detail": why}
    platform = {"verdict": "invalid", "findings": [finding], "unavailable": why}
    verdict = RoundVerdict.model_validate(
        {"round": "r", "verdict": "invalid", "platforms": {"aws": platform}, "notes": [why], "report": why}
    )
    for text in (headline(verdict), verdict_table(verdict)):
        assert "\x1b" not in text
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]


def test_a_log_s_line_is_no_markup_of_the_terminal_that_watches_it() -> None:
    """`prefect deployment run --watch` prints each line of a log as rich's markup, and ends at a wrong tag."""
    shown = escape("aws: [/red] [bold]out of memory[/] at x[0]", "log")
    assert rich.text.Text.from_markup(shown).plain == shown == "aws: [ /red] [ bold]out of memory[ /] at x[0]"


@pytest.mark.parametrize("limit", [60, 61, 80, 200, 5000])
@pytest.mark.parametrize("channel", ["plain", "html", "chat"])
def test_a_text_is_cut_to_what_its_service_takes_and_keeps_its_links_and_its_end(channel: Channel, limit: int) -> None:
    links = ["report: https://a.example/r", "run: https://b.example/1"]
    text = "\n".join(["<cause> @one & two " * 40, "second", "round: n", *links, "", "alert 12"])

    def fits(part: str) -> bool:
        return len(escape(part, channel)) <= limit

    shown = shorten(text, fits)
    assert fits(shown)
    assert shown.endswith("alert 12")
    assert links[1] in shown
    assert links[0] in shown or limit < 80
    assert (shown == text) == fits(text)


def test_a_single_long_line_is_cut_and_a_short_text_stays() -> None:
    assert shorten("x" * 50, lambda text: len(text) <= 20) == "x" * 19 + "…"
    assert shorten("x" * 20, lambda text: len(text) <= 20) == "x" * 20
