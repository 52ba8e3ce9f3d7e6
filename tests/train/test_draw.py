"""A round's draw: evidence that was measured before the round answers it wrongly, or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from plumbline.judge import compare
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.fingerprint import Expected
from plumbline.schema.portable_parts import is_near
from plumbline.schema.spec import RunSpec
from plumbline.schema.verdict import Judgement
from plumbline.train.portable.draw import drawn_row
from tests.said import said
from tests.train.conftest import Trained, Workshop

TONIGHT, LAST = "20261122-020000-7f3a01", "20261115-020000-55d2c4"


def spec_of(workshop: Workshop) -> RunSpec:
    return workshop.spec(probe={"steps": 3, "evaluation_rows": 8, "portable_steps": 2})


def train(workshop: Workshop, night: str, platform: str) -> Trained:
    """Train as ordered by a round: with a nonce and the selfcheck."""
    names = {"round_id": night, "platform": platform, "record_id": f"{night}-{platform}", "nonce": "7" * 32}
    return workshop.train(spec_of(workshop), expected=Expected(), **names)


@pytest.fixture(scope="module")
def tonight(workshop: Workshop) -> Trained:
    return train(workshop, TONIGHT, "aws")


@pytest.fixture(scope="module")
def last(workshop: Workshop) -> Trained:
    return train(workshop, LAST, "azure")


def in_order(trained: Trained, **changes: Any) -> LoadedRecord:
    """Return the evidence in tonight's order, with all that the order of a different platform names."""
    names = {"round_id": TONIGHT, "platform": "azure", "record_id": "azure", "nonce": "7" * 32, "attempt": 0}
    loaded = load_record(trained.folder)
    return replace(loaded, record=loaded.record.replace(**names, **changes))


def drawn(trained: Trained) -> tuple[float, ...] | None:
    return trained.probe.portable.drawn


def judged(reference: Trained, candidate: LoadedRecord) -> Judgement:
    return compare(load_record(reference.folder), candidate)


@pytest.mark.long
def test_last_weeks_evidence_in_tonights_order_is_invalid(tonight: Trained, last: Trained) -> None:
    """All other bits of a night that repeats the night before are equal: it passed."""
    judgement = judged(tonight, in_order(last))
    assert judgement.verdict == "invalid"
    assert judgement.causes == ()
    (finding,) = [finding for finding in judgement.findings if finding.outcome != "pass"]
    assert (finding.check, finding.observed, finding.limit) == ("record.draw", drawn(last)[0], drawn(tonight)[0])
    assert "the evidence is of a different night" in said(finding.detail)


@pytest.mark.long
def test_a_copy_of_the_references_numbers_of_last_week_is_invalid(workshop: Workshop, tonight: Trained) -> None:
    """A reader of the reports has every number of the reference's last night, and none of this one."""
    reference = train(workshop, LAST, "aws")
    assert judged(tonight, in_order(reference)).verdict == "invalid"


def test_evidence_without_an_answer_does_not_pass(tonight: Trained, last: Trained) -> None:
    silent = last.probe.replace(portable=last.probe.portable.replace(drawn=None))
    lost = last.probe.replace(portable={"windows": [], "lost": "not enough memory"})
    for probe in (silent, lost):
        evidence = last.record.evidence.replace(probe=probe)
        judgement = judged(tonight, in_order(last, evidence=evidence))
        assert judgement.verdict == "inconclusive"
        assert [f.check for f in judgement.findings if f.outcome != "pass"] == ["record.draw"]


def test_an_honest_night_answers_alike_whatever_its_threads_and_passes(workshop: Workshop, tonight: Trained) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3 - min(before, 2))
    try:
        other = train(workshop, TONIGHT, "azure")
    finally:
        torch.set_num_threads(before)
    assert is_near(drawn(other), drawn(tonight))
    assert judged(tonight, load_record(other.folder)).verdict == "pass"


def test_a_night_is_compared_with_its_baseline_of_a_different_round(tonight: Trained, last: Trained) -> None:
    assert drawn(last) != drawn(tonight)
    assert judged(last, load_record(tonight.folder)).verdict == "pass"


def test_a_training_without_a_round_has_no_draw_and_is_judged_as_ever(workshop: Workshop, tonight: Trained) -> None:
    """A notebook's or a laptop's: `plumbline import` takes it, and nothing shows when it was measured."""
    alone = workshop.train(spec_of(workshop))
    assert drawn(alone) is None
    assert judged(tonight, load_record(alone.folder)).verdict == "pass"
    assert judged(alone, load_record(tonight.folder)).verdict == "pass"


def test_a_different_formula_keeps_its_cause(workshop: Workshop, tonight: Trained) -> None:
    """What differs in the windows explains a different answer, and says more."""
    with pytest.MonkeyPatch.context() as patch:
        plain, wrong = torch.nn.functional.layer_norm, {"eps": 1e-5}
        patch.setattr(torch.nn.functional, "layer_norm", lambda *given, **named: plain(*given[:4], **(named | wrong)))
        other = train(workshop, TONIGHT, "azure")
    judgement = judged(tonight, load_record(other.folder))
    assert judgement.verdict == "drift"
    assert "record.draw" not in [finding.check for finding in judgement.findings]


@pytest.mark.long
def test_a_task_whose_tokens_are_labelled_answers_too(masked: Workshop) -> None:
    spec = masked.spec(probe={"steps": 2, "evaluation_rows": 8, "portable_steps": 1})
    answers = [drawn(masked.train(spec, round_id=night)) for night in (TONIGHT, LAST, TONIGHT)]
    assert None not in answers
    assert answers[0] == answers[2] != answers[1]


def test_the_drawn_row_keeps_its_padding_and_changes_with_the_round() -> None:
    ids = torch.arange(1, 4 * 64 + 1).reshape(4, 64)
    mask = (torch.arange(64) < 40).long().expand(4, 64)
    batch = {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.arange(4)}
    row = drawn_row(batch, 1000, TONIGHT)
    place = int(row["labels"])
    assert torch.equal(row["input_ids"][0, 40:], torch.zeros(24, dtype=torch.long))
    changed = int((row["input_ids"] != batch["input_ids"][place]).sum())
    assert 8 <= changed <= 32
    assert row["input_ids"].max() < 1000
    assert not torch.equal(row["input_ids"], drawn_row(batch, 1000, LAST)["input_ids"])
    assert torch.equal(row["input_ids"], drawn_row(batch, 1000, TONIGHT)["input_ids"])
    assert torch.equal(batch["input_ids"], ids * mask), "the training's own batch stays as it is"
