"""A small accepted record finds what the whole one finds, says what it leaves out, and is refused if malformed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plumbline
from plumbline.records import LoadedRecord
from plumbline.records.accepted import LEFT_OUT, MAX_ACCEPTED_BYTES, accepted_form, accepted_text, read_accepted
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.verdict import Judgement

from .loops import FAULTS, train


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LoadedRecord:
    folder = tmp_path_factory.mktemp("accepted")
    train(folder / "plain", start=folder / "start.safetensors")
    return plumbline.read_record(folder / "plain")


def shown(judgement: Judgement) -> Any:
    return judgement.verdict, judgement.first_divergence, [cause.code for cause in judgement.causes]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in ("", "eps", "rate", "moved") else pytest.mark.long) for name in FAULTS],
)
def test_the_small_form_names_each_fault_as_the_whole_record_does(
    plain: LoadedRecord, fault: str, tmp_path: Path
) -> None:
    train(tmp_path, fault, start=None if fault == "seed" else plain.folder.parent / "start.safetensors")
    candidate = plumbline.read_record(tmp_path)
    accepted, text = accepted_text(plain)
    assert len(text) <= MAX_ACCEPTED_BYTES
    assert not accepted.left_out
    small = plumbline.compare(accepted.loaded, accepted.beside(candidate), throughput=False)
    assert shown(small) == shown(plumbline.compare(plain, candidate, throughput=False))
    bare = accepted_form(plain, LEFT_OUT)
    least = plumbline.compare(bare.loaded, bare.beside(candidate), throughput=False)
    assert least.verdict == small.verdict
    assert (least.first_divergence and least.first_divergence.step) == (
        small.first_divergence and small.first_divergence.step
    )


def test_a_large_record_gives_up_groups_until_it_fits_and_still_finds_a_fault(tmp_path: Path) -> None:
    def record(name: str, eps: float = 1e-5) -> LoadedRecord:
        torch.manual_seed(7)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=eps)) for _ in range(70)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with plumbline.capture(tmp_path / name, model, optimizer, steps=2) as run:
            for _ in range(2):
                optimizer.zero_grad()
                loss = model(torch.randn(6, 4)).square().mean()
                loss.backward()
                optimizer.step()
                run.step(None, loss)
        return plumbline.read_record(tmp_path / name)

    accepted, text = accepted_text(record("large"))
    assert len(text) <= MAX_ACCEPTED_BYTES
    assert {"updates", "formulas", "gradients"} <= set(accepted.left_out)
    (tmp_path / "a.json").write_text(text)
    assert read_accepted(tmp_path / "a.json") == accepted
    same, other = (accepted.beside(record(f"eps {eps}", eps)) for eps in (1e-5, 1e-4))
    assert plumbline.compare(accepted.loaded, same, throughput=False).verdict == "pass"
    found = plumbline.compare(accepted.loaded, other, throughput=False)
    assert found.verdict == "drift"
    assert (found.first_divergence.stage, found.first_divergence.step) == ("forward", 0)


def test_a_record_that_never_fits_is_refused_in_one_line(plain: LoadedRecord) -> None:
    captured = plain.record.evidence.captured
    many = {f"file {'y' * 200}{place}": "z" for place in range(900)}
    evidence = plain.record.evidence.replace(captured=captured.replace(identity=many).to_json())
    large = LoadedRecord(plain.record.replace(evidence=evidence.to_json()), plain.folder)
    with pytest.raises(InvalidInputError, match=r"bytes as an accepted record.*record fewer steps"):
        accepted_text(large)


def cut(content: dict[str, Any]) -> None:
    content["record"]["evidence"]["probe"]["logits"] = []


def shorter(content: dict[str, Any]) -> None:
    content["sketches"].pop()


def older(content: dict[str, Any]) -> None:
    content["record"]["fingerprint"]["plumbline"] = "9.0.0"
    content["record"]["evidence"]["new"] = 1


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "lacks steps"),
        (shorter, "lacks steps"),
        (older, r"written by plumbline 9\.0\.0"),
        (lambda content: content.update(schema_version=2), "schema_version"),
        (lambda content: content.update(left_out=["everything"]), "left_out"),
        (lambda content: content["record"]["spec"].update(seed=8), "is not the digest of the spec"),
        (lambda content: content["record"].update(exit={"status": "failed"}), "lacks steps"),
        (lambda content: content["record"]["evidence"].pop("captured"), "is not the record of a captured"),
        (lambda content: content.update(padding="x" * MAX_ACCEPTED_BYTES), "more than the 100000 allowed"),
    ],
)
def test_a_malformed_accepted_record_is_refused_in_one_line(
    plain: LoadedRecord, damage: Callable[[dict[str, Any]], None], why: str, tmp_path: Path
) -> None:
    content = json.loads(accepted_text(plain)[1])
    damage(content)
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=why) as caught:
        read_accepted(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_text_with_a_merge_conflict_or_a_number_that_is_none_is_refused(plain: LoadedRecord, tmp_path: Path) -> None:
    text, rates = accepted_text(plain)[1], '"learning_rates":[0.002,'
    for damaged, why in (
        (f"<<<<<<< HEAD\n{text}", "not JSON"), (text[: len(text) // 2], "not JSON"),
        (text.replace(rates, rates.replace("0.002", "NaN")), r"learning_rates\.0: Input should be a finite number"),
    ):  # fmt: skip
        (tmp_path / "damaged.json").write_text(damaged)
        with pytest.raises(InvalidInputError, match=rf"damaged\.json: .*{why}"):
            read_accepted(tmp_path / "damaged.json")


def test_the_text_names_no_machine_and_has_a_line_for_each_tensor(plain: LoadedRecord) -> None:
    accepted, text = accepted_text(plain)
    content = json.loads(text)["record"]
    assert content["fingerprint"]["hostname"] == ""
    assert "command" not in content["evidence"]["captured"]["identity"]
    assert str(plain.folder) not in text
    probe = accepted.record.evidence.probe
    lines = [line for line in text.splitlines() if '"stage":"forward"' in line]
    assert len(lines) == len([tap for tap in probe.taps if tap.stage == "forward"])
