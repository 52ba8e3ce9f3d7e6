"""What one platform's record contains decides nothing for another platform, whatever it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.isolation import largest_judgeable
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import ProbeEvidence, SpeedEvidence
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.sketch import reduced
from tests.record_parts import parquet_of
from tests.said import said
from tests.unit.judge.conftest import make_record
from tests.unit.judge.made_records import evaluation, whole

from .whole_round import NAMES, Content, WholeRound

Tensors = dict[str, Any]


def completed(content: Content) -> None:
    """Add the parts of a record that the judge's tests leave out."""
    made = make_record(has_windows=True, has_portable_sketches=True).record.evidence.probe
    assert made is not None
    assert made.portable is not None
    probe, portable = content["evidence"]["probe"], made.portable.model_dump()
    own = {
        (tap["step"], f"{tap['stage']} {tap['name']}"): tuple(map(float, reduced(numbers)))
        for tap, numbers in zip(probe["taps"], content["arrays"]["sketches"]["sketch"], strict=True)
    }
    for window in portable["windows"]:
        window["sketches"] = [(name, own.get((window["step"], name), known)) for name, known in window["sketches"]]
    probe["portable"] = portable
    content["evidence"]["learn"]["evaluations"] = [evaluation(4), evaluation(8)]
    content["evidence"]["speed"] |= {
        "step_seconds_quartiles": [0.3, 0.5], "step_seconds_p95": 0.6, "wall_seconds": 4.0, "mfu": 0.3,
        "breakdown": {"data_wait": 0.1}, "peak_memory_bytes": 10, "microbenchmarks": {"gemm_flops": 1e12},
        "samples": {"cpu_steal": [0.0, 0.0, 0.0], "load": [1.0, 1.0, 1.0]},
    }  # fmt: skip
    content["timings"] = {"import": 1.0, "stage": 2.0, "build": 3.0}
    content["fingerprint"]["numerics"] = {"threads": 1, "tf32": False}
    content["fingerprint"]["mantissa_bits"] = {"linear": 23}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> WholeRound:
    made = WholeRound(tmp_path_factory.mktemp("round"), whole(completed))
    for name in NAMES:
        made.deliver(name)
    return made


@pytest.fixture(scope="module", autouse=True)
def honest(world: WholeRound) -> GatheredRecords:
    """Gather before any test of this process delivers a malformed record, in whatever order they run."""
    return world.gather()


def verdicts(world: WholeRound, gathered: GatheredRecords, proven: GatheredRecords | None = None) -> dict[str, str]:
    return {name: result.verdict for name, result in world.judge(gathered, proven).items()}


def test_whole_records_pass(world: WholeRound, honest: GatheredRecords) -> None:
    assert verdicts(world, honest) == dict.fromkeys(NAMES, "pass")


def float_labels(tensors: Tensors) -> Tensors:
    return {**tensors, "labels": tensors["labels"].astype(np.float32)}


def flat_ids(tensors: Tensors) -> Tensors:
    return {**tensors, "input_ids": tensors["input_ids"][:, :, 0]}


def deep_rows(tensors: Tensors) -> Tensors:
    return {**tensors, "row_ids": tensors["row_ids"][:, :, None]}


def half_the_ids(tensors: Tensors) -> Tensors:
    return {**tensors, "input_ids": tensors["input_ids"][:, :2]}


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("batches", float_labels),
        ("batches", flat_ids),
        ("batches", deep_rows),
        ("batches", half_the_ids),
        ("sketches", lambda tensors: {"sketch": tensors["sketch"][:3]}),
        ("rows", lambda tensors: {name: column[::-1] for name, column in tensors.items()}),
        ("evaluation", lambda tensors: {**tensors, "row_ids": tensors["row_ids"][:2]}),
        ("state", lambda _: b"not tensors"),
    ],
)
def test_a_malformed_part_is_its_platforms_alone(
    world: WholeRound, tmp_path: Path, part: str, change: Callable[[Tensors], Any]
) -> None:
    """The digests are right: only reading the part shows that it is malformed."""
    changed = change(world.made.arrays[part])
    path = tmp_path / f"{part}.{'parquet' if part == 'rows' else 'safetensors'}"
    if isinstance(changed, bytes):
        path.write_bytes(changed)
    elif part == "rows":
        path.write_bytes(parquet_of(changed))
    else:
        save_file({name: np.ascontiguousarray(array) for name, array in changed.items()}, path)
    world.deliver("azure", **{part: path})
    gathered = world.gather()
    assert path.name in said(gathered.absent[world.assignment("azure")].why)
    assert verdicts(world, gathered) == {"aws": "pass", "azure": "invalid", "gcp": "pass"}


VALUES = (0, -1, 2**63, 10**400, 1e308, -1e308, 5e-324)
LARGE = 1e99
"""A number that a record may contain, and whose ratios overflow."""
FAR = (("evidence", "probe", "taps", 0, "step"), ("evidence", "probe", "evaluation", "step"))


def scalars(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, value) of every scalar, of a list's first element only."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from scalars(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value[:1]):
            yield from scalars(item, (*path, place))
    else:
        yield path, value


def with_value(content: Content, path: tuple[Any, ...], value: Any) -> bytes:
    place: Any = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(content).encode()


def cases(content: Content) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for path, value in scalars(content):
        # A number in place of a text is refused, whichever it is.
        for number in VALUES if isinstance(value, int | float) or value is None else VALUES[:1]:
            yield path, number
        if isinstance(value, float):
            yield path, LARGE
    for path in FAR:
        yield path, 20_000
    for number in (float("nan"), float("inf"), 10**400):
        yield ("spec", "model", "settings"), {"x": number}


@pytest.mark.long
@pytest.mark.parametrize("share", [6, pytest.param(1, marks=pytest.mark.long)], ids=["a sixth", "all"])
def test_no_number_in_a_record_ends_the_round_or_moves_another_platform(
    world: WholeRound, honest: GatheredRecords, caplog: pytest.LogCaptureFixture, share: int
) -> None:
    num_judged, num_refused = 0, 0
    every = list(cases(world.content("azure")))
    for path, value in random.Random(3).sample(every, len(every) // share):
        world.deliver("azure", with_value(world.content("azure"), path, value))
        gathered = world.gather("azure")
        if not gathered.records:
            num_refused += 1
            assert not caplog.records, (path, value, said(caplog.text)[-2000:])
            continue
        num_judged += 1
        found = verdicts(world, GatheredRecords(honest.records | gathered.records), gathered)
        assert (found["aws"], found["gcp"]) == ("pass", "pass"), (path, value)
        assert not caplog.records, (path, value, said(caplog.text)[-2000:])
    assert num_judged > 150 / share
    assert num_refused > 600 / share


def altered(made: LoadedRecord, **evidence: Any) -> LoadedRecord:
    """Return a record that no reader accepts, as a defect of the schema would let one in."""
    changed = made.record.evidence.model_copy(update=evidence)
    return LoadedRecord(made.record.model_copy(update={"evidence": changed}), made.folder, made.arrays)


def rates_of_text(made: LoadedRecord) -> LoadedRecord:
    """Change what only a comparison with a different record computes with."""
    probe: ProbeEvidence = made.record.evidence.probe  # type: ignore[assignment]
    return altered(made, probe=probe.model_copy(update={"learning_rates": ("fast",) * probe.num_steps}))


def huge_memory(made: LoadedRecord) -> LoadedRecord:
    speed: SpeedEvidence = made.record.evidence.speed  # type: ignore[assignment]
    return altered(made, speed=speed.model_copy(update={"peak_memory_bytes": 10**400}))


@pytest.mark.parametrize("change", [rates_of_text, huge_memory])
@pytest.mark.parametrize("name", NAMES)
def test_a_defect_that_a_record_shows_ends_its_platforms_judgement_alone(
    world: WholeRound,
    honest: GatheredRecords,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[LoadedRecord], LoadedRecord],
    name: str,
) -> None:
    records = {**honest.records}
    records[world.assignment(name)] = change(records[world.assignment(name)])
    result = world.judge(GatheredRecords(records))
    assert {name: one.verdict for name, one in result.items()} == dict.fromkeys(NAMES, "pass") | {name: "invalid"}
    assert any("a defect of Plumbline" in said(finding.detail) for finding in result[name].findings)
    assert "Traceback" in said(caplog.text)
    assert name in said(caplog.text)


class Judged:
    """A judge that fails where platforms meet that may not, and counts the platforms that it judges."""

    def __init__(self, *conflicts: set[str]) -> None:
        self.conflicts, self.total = conflicts, 0

    def __call__(self, names: Sequence[str]) -> None:
        self.total += len(names)
        if any(conflict <= set(names) for conflict in self.conflicts):
            raise ZeroDivisionError


def platforms(num_platforms: int) -> list[str]:
    return [f"p{index}" for index in range(num_platforms)]


@pytest.mark.parametrize("broken", [0, 1, 31])
def test_a_broken_record_costs_each_platform_one_comparison(broken: int) -> None:
    names = platforms(32)
    judge = Judged({names[broken]})
    kept, defects = largest_judgeable(names, judge)
    assert (sorted(kept), list(defects)) == (sorted(set(names) - {names[broken]}), [names[broken]])
    # Each with the reference, and those that remain together.
    assert judge.total <= 3 * len(names)


@pytest.mark.parametrize(
    ("conflicts", "lost"),
    [
        ([{"p3", "p5"}], {"p5"}),  # only beside each other, not beside the reference
        ([{"p0", name} for name in platforms(8)[1:]], {"p0"}),  # the reference beside any platform
        ([{"p2"}, {"p6"}], {"p2", "p6"}),
    ],
)
def test_as_many_platforms_as_can_be_judged_together_remain(conflicts: list[set[str]], lost: set[str]) -> None:
    judge = Judged(*conflicts)
    kept, defects = largest_judgeable(platforms(8), judge)
    assert (set(kept), set(defects)) == (set(platforms(8)) - lost, lost)
    judge(kept)


@pytest.mark.long
def test_records_that_memory_has_no_room_for_are_read_again_and_judged_alike(
    world: WholeRound, honest: GatheredRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = world.judge(honest)
    for name in NAMES:
        world.deliver(name)
    monkeypatch.setattr("plumbline.records.loaded_record._MAX_IN_MEMORY", 1)
    monkeypatch.setattr("plumbline.judge.compared._MAX_PAIRS", 1)
    gathered = world.gather()
    assert world.judge(gathered) == expected
    assert len(gathered.table) == 1
    assert sum("record" in vars(record) for record in gathered.records.values()) == 1
    assert sum("state" in vars(record) for record in gathered.records.values()) <= 1


def other_loss(folder: Path) -> None:
    path = folder / RECORD_NAME
    content = json.loads(path.read_bytes())
    content["evidence"]["probe"]["losses"][0] *= 2
    path.write_text(json.dumps(content), "utf-8")


def other_rows(folder: Path) -> None:
    path = folder / "batches.safetensors"
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    tensors["input_ids"][0, 0, 0] += 1
    save_file(tensors, path)


@pytest.mark.parametrize("change", [other_loss, other_rows])
def test_a_record_that_changed_since_it_was_gathered_is_not_judged(
    world: WholeRound, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    for name in NAMES:
        world.deliver(name)
    monkeypatch.setattr("plumbline.records.loaded_record._MAX_IN_MEMORY", 1)
    gathered = world.gather()
    victim = gathered.records[world.assignment("azure")]
    assert "record" not in vars(victim)
    change(victim.folder)
    results = world.judge(gathered)
    assert {name: result.verdict for name, result in results.items()} == {
        "aws": "pass", "azure": "invalid", "gcp": "pass",
    }  # fmt: skip
    (finding,) = [finding for finding in results["azure"].findings if finding.outcome == "invalid"]
    why = "changed since it was read" if change is other_loss else "does not match the digest in its record"
    assert why in f"{said(finding.detail)} {results['azure'].unavailable}"
