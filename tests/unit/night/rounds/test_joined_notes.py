"""Typed notes survive the merge of workloads."""

from __future__ import annotations

from plumbline.judge import needs_rerun
from plumbline.night.rounds.outcome import join
from plumbline.report.sentences import by_rounding, cause_line
from plumbline.report.terminal import next_step
from plumbline.schema.verdict import Finding, Judgement, Note, PlatformResult, RoundVerdict


def result(*notes: Note) -> PlatformResult:
    return PlatformResult(verdict="pass", findings=(Finding(check="probe.equality", outcome="pass"),), notes=notes)


ROUNDING = Note(code="rounding", text="the runs differ by rounding alone")
NO_BASELINE = Note(code="no-baseline", text="accept this record")


def test_a_platform_of_two_workloads_keeps_what_its_notes_say() -> None:
    joined = join({"cls": result(ROUNDING, NO_BASELINE), "mlm": result()})
    assert [(note.code, note.workload) for note in joined.notes] == [("rounding", "cls"), ("no-baseline", "cls")]
    assert by_rounding(joined)
    assert cause_line(joined) == "kernel: rounding only"
    verdict = RoundVerdict(round="r", suite="s", verdict="pass", platforms={"aws": joined})
    assert next_step(verdict, "s.toml") == "plumbline baseline accept s.toml --round r (no baseline yet: aws)"


def test_no_sentence_is_read_to_decide() -> None:
    sentences = ("kernel: the runs differ", "no baseline: accept", "a rerun has to confirm it")
    lying = result(*(Note(code="remark", text=text) for text in sentences))
    assert not by_rounding(lying)
    verdict = RoundVerdict(round="r", suite="s", verdict="pass", platforms={"aws": lying})
    assert next_step(verdict, "s.toml") == ""
    finding = Finding(check="speed.throughput", outcome="inconclusive", detail="a rerun has to confirm it")
    assert not needs_rerun(Judgement(verdict="inconclusive", findings=(finding,)))
    assert needs_rerun(Judgement(verdict="inconclusive", findings=(finding.replace(needs_rerun=True, detail=""),)))
