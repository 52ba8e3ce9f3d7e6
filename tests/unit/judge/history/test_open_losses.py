"""A loss that nothing has answered never ages into a pass: it stays open, and is drift after its deadline."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from plumbline.cli.main import main
from plumbline.judge.history.allowed import allowed_for
from plumbline.judge.history.decision import Answers, Decision, Past, Question, Software, advance, level_reference
from plumbline.judge.history.detection import is_ruled_out, lasting
from plumbline.judge.history.engine import decide
from plumbline.judge.history.metrics import METRICS, extended
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.history.segments import lines_of, past_of
from plumbline.report.summary import summarise
from plumbline.schema.series import CallEntry
from plumbline.schema.suite import Gates
from tests.unit.judge.history import nights
from tests.unit.judge.history.nights import night, noise, run_nights

ALLOWED = nights.ALLOWED.of("throughput")
NUM_LOST = 40
HISTORIES = (8, 20, *(pytest.param(length, marks=pytest.mark.long) for length in (12, 60)))
ROADS = ("no experiment", "no environment", "machine")


def judged(road: str, size: float, history: int, seed: int) -> list[Decision]:
    """Judge `history` nights with an SD of 1%, then forty with a loss, of which the reruns share 0.7."""
    generator = np.random.Generator(np.random.Philox(key=[seed, history]))
    losses = np.where(np.arange(history + NUM_LOST) >= history, size, 0.0)
    software: Software = "can-differ" if road == "machine" else "unavailable"
    past, decisions = Past(np.zeros(0)), []
    for loss, chance in zip(losses.tolist(), generator.normal(0, 0.01, len(losses)).tolist(), strict=True):
        answers = Answers()
        decision = decide(past, loss + chance, ALLOWED, answers, software=software)
        if road != "no experiment" and decision.needs:
            answers = Answers(tuple((loss + 0.7 * chance + generator.normal(0, 0.007, 4)).tolist()))
            decision = decide(past, loss + chance, ALLOWED, answers, software=software)
        if decision.needs == "ab":
            runs = loss + generator.normal(0, 0.003, (2, 6, 2))
            answers = Answers(answers.reruns, runs[0], runs[1])
            decision = decide(past, loss + chance, ALLOWED, answers, software=software)
        past = advance(past, loss + chance, decision)
        decisions.append(decision)
    return decisions


def after_the_question(decisions: list[Decision], history: int) -> list[str]:
    """Return the verdicts on the lost nights from the first question on."""
    verdicts = [decision.verdict for decision in decisions[history:]]
    first = next((place for place, verdict in enumerate(verdicts) if verdict != "pass"), len(verdicts))
    return list(verdicts[first:])


@pytest.mark.first(4)
@pytest.mark.parametrize("road", ROADS[:2])
@pytest.mark.parametrize("size", [0.02, 0.03, 0.05, 0.1])
@pytest.mark.parametrize("history", HISTORIES)
def test_no_night_passes_after_a_question_while_the_loss_stands(road: str, size: float, history: int) -> None:
    for seed in range(5):
        verdicts = after_the_question(judged(road, size, history, seed), history)
        assert verdicts, (seed, "nothing has asked about the loss")
        assert "pass" not in verdicts, (seed, verdicts)


@pytest.mark.long
@pytest.mark.parametrize("size", [0.02, 0.03])
@pytest.mark.parametrize("history", HISTORIES)
def test_every_pass_names_a_slow_machine_until_nights_rule_it_out(size: float, history: int) -> None:
    for seed in range(5):
        decisions = judged("machine", size, history, seed)[history:]
        first = next(place for place, decision in enumerate(decisions) if decision.question is not None)
        reasons = {decision.reason for decision in decisions[first:] if decision.verdict == "pass"}
        assert reasons <= {"machine"}, (seed, reasons)


@pytest.mark.long
def test_a_loss_of_two_sd_after_eight_nights_is_asked_about() -> None:
    """A growing reference takes such nights in: they are compared with the nights before each of them instead."""
    unasked = [seed for seed in range(60) if not after_the_question(judged("no environment", 0.02, 8, seed), 8)]
    assert len(unasked) <= 2, unasked


@pytest.mark.parametrize(("size", "history"), [(0.02, 20), (0.03, 20), (0.03, 60)])
def test_a_slow_machine_within_the_limit_is_a_note(size: float, history: int) -> None:
    for seed in range(3):
        decisions = judged("machine", size, history, seed)[history:]
        assert not [decision for decision in decisions if decision.verdict == "drift"]
        assert sum(decision.verdict != "pass" for decision in decisions) <= 2
        assert any(decision.reason == "machine" for decision in decisions)


@pytest.mark.parametrize(("size", "history"), [(0.1, 20), (0.1, 60), (0.08, 60)])
def test_a_slow_machine_beyond_the_limit_alerts_once_and_is_known_then(size: float, history: int) -> None:
    for seed in range(3):
        decisions = judged("machine", size, history, seed)[history:]
        called = [place for place, decision in enumerate(decisions) if decision.verdict == "drift"]
        assert len(called) == 1
        assert called[0] <= 14
        assert (decisions[called[0]].reason, decisions[called[0]].is_cleared) == ("lasting", True)
        later = {(decision.verdict, decision.reason) for decision in decisions[called[0] + 1 :]}
        assert later == {("pass", "open-call")}


def judged_machine(levels: np.ndarray) -> list[Decision]:
    """Judge nights whose reruns and A/B runs are of the night's machine: equal software."""
    generator, past, decisions = np.random.Generator(np.random.Philox(key=[7, 7])), Past(np.zeros(0)), []
    for level in levels.tolist():
        answers = Answers(tuple((level + generator.normal(0, 0.003, 4)).tolist()))
        decision = decide(past, level, ALLOWED, answers, software="equal")
        past = advance(past, level, decision)
        decisions.append(decision)
    return decisions


@pytest.mark.parametrize("seed", range(3))
def test_faster_first_nights_are_no_question_without_end(seed: int) -> None:
    levels = np.random.default_rng(seed).normal(0, 0.01, 200)
    levels[:30] -= 0.03
    decisions = judged_machine(levels)
    assert sum(decision.verdict == "inconclusive" for decision in decisions[30:]) <= 14
    called = [decision for decision in decisions if decision.verdict == "drift"]
    assert all(decision.is_cleared for decision in called)


@pytest.mark.parametrize("kind", ["season", "slow node"])
@pytest.mark.parametrize("seed", range(2))
def test_a_season_and_a_slow_node_are_the_machines(kind: str, seed: int) -> None:
    days = np.arange(200)
    levels = np.random.default_rng(seed).normal(0, 0.01, 200)
    levels += 0.014 * np.sin(2 * np.pi * days / 90) if kind == "season" else 0.03 * ((days >= 90) & (days < 110))
    decisions = judged_machine(levels)
    called = [decision for decision in decisions if decision.verdict == "drift"]
    assert all(decision.is_cleared and decision.reason in ("lasting", "open-call") for decision in called)
    named = ("machine", "lasting", "open-call")
    assert kind == "season" or any(decision.reason in named for decision in decisions[93:110])
    assert decisions[-1].verdict == "pass"


@pytest.mark.parametrize("road", ROADS[:2])
@pytest.mark.parametrize(("size", "history"), [(0.05, 60), (0.1, 20), (0.1, 60)])
def test_an_unanswered_loss_is_drift_once_the_nights_show_it(road: str, size: float, history: int) -> None:
    decisions = judged(road, size, history, 5)
    called = next(place for place, decision in enumerate(decisions) if decision.verdict == "drift")
    assert history <= called <= history + 14
    assert decisions[called].reason == "lasting"
    assert {decision.verdict for decision in decisions[called:]} == {"drift"}


def test_a_loss_that_goes_away_closes_within_a_week_and_its_nights_count_again() -> None:
    values = np.random.default_rng(2).normal(0, 0.01, 80)
    values[40:44] += 0.06
    past, verdicts = Past(np.zeros(0)), []
    for value in values.tolist():
        decision = decide(past, value, ALLOWED, software="unavailable")
        verdicts.append(decision.verdict)
        past = advance(past, value, decision)
    assert set(verdicts[40:44]) == {"inconclusive"}
    assert set(verdicts[51:]) == {"pass"}
    assert past.question is None
    assert decision.reference is not None
    assert decision.reference.count == 60


def test_the_series_file_holds_an_open_loss_as_the_engine_does() -> None:
    values = noise(3, 100)
    values[40:46] *= 0.95  # goes away
    values[70:] *= 0.9
    series, found = run_nights(values)
    of_file = {index: (one.decision.verdict, one.decision.reason) for index, one in found}
    past, of_engine = Past(np.zeros(0)), {}
    for index, score in enumerate((-np.log(values)).tolist()):
        answers = Answers((score,) * 4)
        decision = decide(past, score, ALLOWED, answers, software="equal")
        past = advance(past, score, decision)
        of_engine[index] = (decision.verdict, decision.reason)
    loud = {index: one for index, one in of_engine.items() if index in of_file}
    assert of_file == loud
    assert ("pass", "machine") in loud.values()
    assert ("drift", "lasting") in loud.values()
    assert len(series.calls) > 3


@pytest.mark.parametrize(("history", "seed"), [(12, 4), (12, 22), (16, 0)])
def test_a_called_loss_is_not_gone_by_the_nights_before_it(history: int, seed: int) -> None:
    """The A/B calls the loss on its first night; on the next one four of the newest five nights are still older."""
    generator = np.random.Generator(np.random.Philox(key=[seed, history]))
    chances = generator.normal(0, 0.01, history + NUM_LOST)
    past, verdicts = Past(np.zeros(0)), []
    for index, chance in enumerate(chances.tolist()):
        loss = 0.05 if index >= history else 0.0
        runs = loss + np.linspace(-0.001, 0.001, 4)
        blocks = np.tile(np.linspace(-0.001, 0.001, 2), (8, 1))
        answers = Answers(tuple(runs.tolist()), blocks + loss, blocks)
        decision = decide(past, loss + chance, ALLOWED, answers)
        past = advance(past, loss + chance, decision)
        verdicts.append(decision.verdict)
    first = verdicts.index("drift")
    assert first <= history + 1
    assert set(verdicts[first:]) == {"drift"}


def test_seven_nights_of_a_loss_nobody_has_asked_about_move_no_reference_of_eight() -> None:
    values = np.append(np.random.default_rng(1).normal(0, 0.01, 8), np.random.default_rng(2).normal(0.03, 0.01, 7))
    reference = reference_of(values, floor=1e-3)
    assert reference is not None
    assert reference.centre == np.median(values[:8])


def test_an_accepted_baseline_closes_an_open_loss() -> None:
    values = noise(3, 43)
    values[40:] *= 0.93
    series, found = run_nights(values)
    assert found[-1][1].verdict == "inconclusive"
    stamps = [night(day, {}).time for day in (0, 42)]
    (before,), (after,) = lines_of(series, METRICS, {}), lines_of(series, METRICS, {"bert": stamps})
    assert past_of(before).question is not None
    assert past_of(after).question is None


def test_a_question_without_a_size_of_an_earlier_version_opens_nothing() -> None:
    series, _ = run_nights(noise(3, 30))
    values = {"record": series.record[20], "metric": "throughput", "verdict": "inconclusive", "reason": "unconfirmed"}
    older = extended(series, [], [CallEntry.model_validate(values)])
    assert past_of(lines_of(older, METRICS, {})[0]).question is None


@pytest.mark.parametrize(("place", "since"), [(20, 0), (20, 17), (20, 20), (21, 21)])
def test_a_question_of_the_series_file_begins_on_the_night_that_it_names(place: int, since: int) -> None:
    series, _ = run_nights(noise(3, 30))
    asked = {"verdict": "inconclusive", "reason": "open-loss", "size": 0.05, "since": series.time[since]}
    entry = CallEntry.model_validate({"record": series.record[place], "metric": "throughput", **asked})
    past = past_of(lines_of(extended(series, [], [entry]), METRICS, {})[0], until=place + 1)
    assert past.question == Question(since, place, 0.05)


@pytest.mark.parametrize("history", HISTORIES)
def test_history_of_a_file_calls_a_loss_that_no_round_has_judged(
    history: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = noise(1, history + 40)
    values[history:] *= 0.9
    days = [f"2026-{1 + day // 28:02d}-{1 + day % 28:02d}" for day in range(len(values))]
    rows = [f"{day},speed,{value}" for day, value in zip(days, values.tolist(), strict=True)]
    path = tmp_path / "series.csv"
    for num_lost, verdict, code in ((1, "inconclusive", 3), (20, "drift", 1), (40, "drift", 1)):
        path.write_text("\n".join(["time,metric,value", *rows[: history + num_lost]]), encoding="utf-8")
        assert main(["history", "--from", str(path), "--json"]) == code
        (line,) = json.loads(capsys.readouterr().out)["lines"]
        assert line["verdict"] == verdict, (num_lost, line["sentence"])
        assert num_lost == 1 or "since 2026-" in line["sentence"]


def undone(
    generator: np.random.Generator, size: float, span: int, *, rho: float = 0.0, has_ab: bool = True
) -> list[Decision]:
    """Judge forty nights, `span` nights of a gain, and forty without it."""
    gains = np.where((np.arange(80 + span) >= 40) & (np.arange(80 + span) < 40 + span), size, 0.0)
    past, chance, decisions = Past(np.zeros(0)), 0.0, []
    software: Software = "can-differ" if has_ab else "unavailable"
    for gain in gains.tolist():
        chance = rho * chance + generator.normal(0, 0.01 * math.sqrt(1 - rho**2))
        tonight, answers = chance - gain, Answers()
        decision = decide(past, tonight, ALLOWED, answers, software=software)
        if decision.needs:
            answers = Answers(tuple((tonight + generator.normal(0, 0.003, 4)).tolist()))
            decision = decide(past, tonight, ALLOWED, answers, software=software)
        if decision.needs == "ab":
            runs = generator.normal(0, 0.003, (2, 12, 2))
            decision = decide(past, tonight, ALLOWED, Answers(answers.reruns, runs[0] - gain, runs[1]))
        decisions.append(decision)
        past = advance(past, tonight, decision)
    return decisions


@pytest.mark.first(2)
@pytest.mark.parametrize("has_ab", [True, False])
@pytest.mark.parametrize(("size", "span"), [(0.03, 60), (0.05, 20), (0.05, 60)])
def test_a_loss_that_undoes_a_gain_is_called(size: float, span: int, has_ab: bool) -> None:
    called = 0
    for seed in range(6):
        generator = np.random.Generator(np.random.Philox(key=[seed, span]))
        decisions = undone(generator, size, span, has_ab=has_ab)
        called += any(decision.new and decision.verdict == "drift" for decision in decisions[40 + span :])
    assert called >= 5


@pytest.mark.first(1)
@pytest.mark.parametrize(("size", "span"), [(0.03, 60), (0.05, 20)])
def test_an_ab_proves_a_gain_of_nights_that_correlate(size: float, span: int) -> None:
    """Few such nights show no gain by themselves: what undoes it passed."""
    called = 0
    for seed in range(12):
        generator = np.random.Generator(np.random.Philox(key=[seed, 200 + span]))
        decisions = undone(generator, size, span, rho=0.6)
        called += any(decision.new and decision.verdict == "drift" for decision in decisions[40 + span :])
    assert called >= 11


def test_the_lead_of_a_gain_is_what_its_ab_shows_at_least() -> None:
    """Half of the measured sizes are too large: against such a lead the next A/B would find a loss."""
    leads = []
    for seed in range(30):
        generator = np.random.Generator(np.random.Philox(key=[seed, 300]))
        proven = (one for one in undone(generator, 0.04, 20) if one.reason == "improved" and one.new)
        leads += [one.lead for one in proven][:1]
    assert len(leads) >= 28
    assert sum(lead > 0.04 for lead in leads) <= 3
    assert min(leads) > 0.03


def test_nights_on_both_sides_show_a_gain_after_nights_that_seem_correlated_by_chance() -> None:
    shown = []
    for seed in range(150):
        values = np.random.default_rng(seed).normal(0, 0.01, 50)
        values[30:] += 0.03
        reference = reference_of(values[:30], floor=1e-3, is_whole=True)
        assert reference is not None
        if reference.rho > 0.3:
            shown.append(lasting(values, reference, ALLOWED.lasting_alpha) > 0)
    assert len(shown) >= 15
    assert sum(shown) >= 7  # by the first thirty nights alone two


def test_a_machine_that_becomes_noisier_is_known_to_be() -> None:
    values = np.random.default_rng(4).normal(0, 0.01, 180)
    values[60:] *= 2
    before, after = (reference_of(values[:num], floor=1e-3) for num in (67, 180))
    assert before is not None
    assert after is not None
    assert after.centre == before.centre
    assert 1.4 < after.spread / before.spread < 1.8


def test_the_deadline_is_a_key_of_the_suite() -> None:
    assert Gates().open_nights == ALLOWED.open_nights == 7


@pytest.mark.parametrize("seed", range(5))
def test_an_accepted_gain_is_the_reference_and_its_loss_a_regression(seed: int) -> None:
    values = noise(seed, 130)
    values[40:100] *= 1.1
    _, found = run_nights(values, accepted=[0, 45], begin=90)
    called = [index for index, one in found if one.decision.new]
    assert called
    assert 100 <= called[0] <= 107


def test_nights_of_a_loss_do_not_rule_it_out_because_its_first_one_was_an_outlier() -> None:
    reference = Reference(0.0, 0.0068, 60, 0.0)
    assert not is_ruled_out(0.0646, np.array([0.0301, 0.0102, 0.0183, 0.0197]), reference)
    assert is_ruled_out(0.0646, np.array([0.001, -0.002, 0.003, 0.0, 0.002]), reference)


def test_one_fast_night_rules_out_no_loss_of_three_sd() -> None:
    assert not is_ruled_out(0.0219, np.array([-0.0103]), Reference(0.0, 0.0062, 60, 0.0))


def test_the_nights_of_a_called_loss_enter_no_reference_after_its_end() -> None:
    values = noise(2, 110)
    values[20:60] *= 0.9
    _, found = run_nights(values)
    assert any(one.recovered for _, one in found)
    series, _ = run_nights(values)
    (line,) = lines_of(series, METRICS, {})
    reference = level_reference(past_of(line))
    assert reference is not None
    assert abs(reference.centre + np.log(100)) < 0.01


def test_nights_of_a_called_loss_do_not_end_it_because_it_was_called_on_its_worst_nights() -> None:
    reference = Reference(0.0, 0.0074, 60, 0.0)
    assert not is_ruled_out(0.047, np.full(20, 0.0184), reference, is_cleared=True)
    assert is_ruled_out(0.047, np.full(5, 0.001), reference, is_cleared=True)


@pytest.mark.parametrize("num_lost", [60, 100, 250])
def test_a_loss_is_dated_where_it_began_however_long_it_stands(num_lost: int) -> None:
    values = noise(3, 60 + num_lost)
    values[60:] *= 0.92
    alone = allowed_for(num_platforms=1, num_series=12, has_experiments=False)
    summary = summarise(nights.line_of(nights.series_of(values)), alone, is_judged=False)
    (change,) = summary.changes
    assert (summary.verdict, change.since) == ("drift", "2026-03-02")
    assert "since 2026-03-02" in summary.sentence, summary.sentence
