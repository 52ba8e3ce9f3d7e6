"""Functions of the first step name what differs, with both arguments, and accuse nobody by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertModel

import plumbline
from plumbline.records import LoadedRecord
from plumbline.schema.base import read_model
from plumbline.schema.captured import MAX_CALLS, FunctionCall, FunctionCalls
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.record import RunRecord
from plumbline.train.capture.functions import called_functions
from tests.said import said

from .loops import train


def _functions(record: LoadedRecord) -> FunctionCalls:
    captured = record.record.evidence.captured
    assert captured.functions is not None
    return captured.functions


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    train(folder / "plain", start=folder / "start.safetensors")
    return folder


class Attention(nn.Module):
    """Attention by one function, or by its definition."""

    def __init__(self, *, is_fused: bool) -> None:
        super().__init__()
        self.given, self.out, self.is_fused = nn.Linear(16, 48), nn.Linear(16, 2), is_fused

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        query, key, value = self.given(rows).chunk(3, dim=-1)
        if self.is_fused:
            return self.out(functional.scaled_dot_product_attention(query, key, value)).mean(1)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        return self.out(scores.softmax(-1) @ value).mean(1)


class Halving(nn.Module):
    """Computes its second layer in a shorter format."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.first, self.second, self.dtype = nn.Linear(16, 16), nn.Linear(16, 2), dtype

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            hidden = self.second(torch.tanh(self.first(rows))).float()
        return hidden.mean(1)


def _recorded(folder: Path, model: nn.Module, threads: int = 0) -> LoadedRecord:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    torch.manual_seed(7)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.2 * torch.randn(value.shape))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with plumbline.capture(folder, model, optimizer, steps=4) as run:
        for _ in range(4):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(torch.randn(8, 6, 16)), torch.randint(0, 2, (8,)))
            loss.backward()
            optimizer.step()
            run.step(None, loss)
    torch.set_num_threads(before)
    return plumbline.read_record(folder)


@pytest.mark.parametrize("threads", [0, 2])
def test_two_ways_to_compute_one_formula_pass_and_are_told(tmp_path: Path, threads: int) -> None:
    first = _recorded(tmp_path / "a", Attention(is_fused=True))
    other = _recorded(tmp_path / "b", Attention(is_fused=False), threads)
    judgement = plumbline.compare(first, other, throughput=False)
    assert (judgement.verdict, [said(cause.why) for cause in judgement.causes]) == ("pass", [])
    told = "model calls transpose instead of scaled_dot_product_attention"
    assert [note for note in judgement.notes if told in said(note.text)]


def test_formats_that_differ_alone_are_precision(tmp_path: Path) -> None:
    first = _recorded(tmp_path / "a", Halving(torch.float32))
    other = _recorded(tmp_path / "b", Halving())
    judgement = plumbline.compare(first, other, throughput=False)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "precision")


def test_what_one_record_lacks_is_unknown_and_no_difference(plain: Path) -> None:
    whole = plumbline.read_record(plain / "plain")
    captured = whole.record.evidence.captured
    evidence = whole.record.evidence.replace(captured=captured.replace(functions=None).to_json())
    bare, other = (LoadedRecord(whole.record.replace(evidence=evidence.to_json()), whole.folder) for _ in range(2))
    for sides in ((whole, bare), (bare, whole), (bare, other)):
        judgement = plumbline.compare(*sides, throughput=False)
        assert judgement.verdict == "pass"
        assert [note for note in judgement.notes if "functions of the first step are unknown" in said(note.text)]


def test_a_record_of_too_many_calls_or_too_long_words_is_refused(plain: Path, tmp_path: Path) -> None:
    record = json.loads((plain / "plain" / "record.json").read_text())
    functions = record["evidence"]["captured"]["functions"]
    first = functions["calls"][0]
    functions["calls"] = [first | {"name": "g" * 501}]
    (tmp_path / "long.json").write_text(json.dumps(record))
    functions["calls"] = [first] * (MAX_CALLS + 1)
    (tmp_path / "many.json").write_text(json.dumps(record))
    for name in ("long.json", "many.json"):
        with pytest.raises(InvalidInputError, match=r"functions\.calls"):
            read_model(RunRecord, tmp_path / name)


def test_an_encoder_of_twelve_layers_needs_less_than_70_kb() -> None:
    settings = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100}
    model = BertModel(BertConfig(num_hidden_layers=12, **settings))
    ids = torch.zeros(8, 12, dtype=torch.long)
    found = called_functions(model, (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert 300 < len(found.calls) < 400
    assert len(json.dumps(found.to_json())) < 70_000


def test_a_pass_of_very_many_calls_says_what_it_leaves_out() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(2))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            for _ in range(MAX_CALLS):
                rows = rows + self.own
            return rows.relu()

    found = called_functions(Long(), (torch.ones(3, 2),), {})
    assert len(found.calls) == MAX_CALLS
    assert "behind the first" in found.lost


class Kept(nn.Module):
    """Keeps what it computed, and reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.before = nn.Linear(6, 6), list[torch.Tensor]()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found = self.inner(rows)
        found = found + sum(each.mean() for each in self.before)
        self.before.append(found.detach())
        return found


def _scripted() -> nn.Module:
    return torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.GELU()))


def _compiled() -> nn.Module:
    return torch.compile(nn.Sequential(nn.Linear(6, 6), nn.GELU()), backend="eager")


class Softened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return functional.softmax(self.inner(rows), dim=-1)


class Moved(nn.Sequential):
    """Written for a card, and run on a CPU."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 6), nn.GELU())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows.cuda())


class Drawing(nn.Module):
    """Draws its own noise, writes over its input, and calls its modules within a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act, self.drop = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"), torch.autocast("cpu", torch.bfloat16):
            hidden = self.drop(self.act(self.inner(rows.mul_(1.0))))
        return hidden.float() + 0.01 * torch.randn(6)


HOSTILE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "keeps": (Kept, ""), "scripted": (_scripted, ""), "compiled": (_compiled, ""),
    "replaced": (Softened, "torch.nn.functional.softmax is replaced"), "draws": (Drawing, ""), "moved": (Moved, ""),
}  # fmt: skip
"""Modules, and why their functions are unknown."""


def _state(make: Callable[[], nn.Module], folder: Path | None) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(make(), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop(ends: Callable[[], None]) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 6)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                model.eval()(torch.randn(5, 6))
            model.train()
            ends()

    if folder is None:
        loop(lambda: None)
    else:
        with plumbline.capture(folder, model, optimizer, steps=3) as run:
            loop(run.step)
    return [*(value.clone() for value in model.state_dict().values()), torch.get_rng_state()]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
@pytest.mark.parametrize("name", HOSTILE)
def test_no_function_that_is_listed_changes_a_bit_of_the_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, lost = HOSTILE[name]
    own = functional.softmax
    if name == "replaced":  # without the private arguments of torch's own
        monkeypatch.setattr(functional, "softmax", lambda value, dim: own(value * 1.5, dim=dim))
    if name == "moved":  # by a function that calls nothing
        monkeypatch.setattr(torch.Tensor, "cuda", lambda value: value)
    plain, seen = _state(make, None), _state(make, tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    record = plumbline.read_record(tmp_path)
    assert not [why for why in record.record.evidence.captured.unknown if "Error" in why]
    functions = _functions(record)
    assert functions.lost == lost
    assert all("is replaced" in proof.lost for proof in record.record.evidence.probe.proofs) == bool(lost)
    assert lost or {"linear", "dropout", "batch_norm"} <= {call.name for call in functions.calls}


def test_a_pass_that_raises_says_why() -> None:
    class Refusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Parameter(torch.ones(2))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if len(rows) < 5:
                raise RuntimeError("too few rows")
            return rows * self.own

    assert called_functions(Refusing(), (torch.ones(6, 2),), {}) == FunctionCalls(lost="RuntimeError: too few rows")
    given = called_functions(Refusing(), (torch.ones(6, 2), iter(())), {})
    assert given == FunctionCalls(lost="the model is given an object that a call may change")


def test_a_call_has_plain_arguments_formats_and_shapes() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(approximate="tanh"))
    calls = called_functions(model, (torch.zeros(9, 3),), {}).calls
    assert calls[1] == FunctionCall(
        module="1", name="gelu", arguments={"approximate": "'tanh'"}, formats="float32 → float32", shapes="4x4 → 4x4"
    )
