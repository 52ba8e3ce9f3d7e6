"""Evidence that is withheld, renamed or forged is not a pass, also between machines whose rounding differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.whole import stands_alone
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.records import LoadedRecord

from .conftest import GENERATORS, make_record, set_all
from .made_records import Content, edit, evaluation, in_spec, keep_taps, probe, rounded, whole, windows
from .test_wrong_reference import NAMES, make_round

Change = Callable[[Content], Any]


def verdict(*changes: Change, **plan: Any) -> str:
    return compare(whole(), rounded(*changes, **plan)).verdict


def test_an_honest_record_of_other_kernels_passes() -> None:
    assert verdict() == "pass"
    assert compare(rounded(), whole()).verdict == "pass"


# Taps.


def only(*names: str) -> Change:
    return lambda content: keep_taps(content, lambda tap: tap["stage"] != "forward" or tap["name"] in names)


def renamed(content: Content) -> None:
    for tap in probe(content)["taps"]:
        if tap["stage"] == "gradient":
            tap["name"] = f"{tap['name']}.bogus"


def sketched_twice(content: Content) -> None:
    """Sketch the head's output as it is, and again as the reference has it: the last one counted."""
    good = make_record().record.evidence.probe
    assert good is not None
    place = next(at for at, tap in enumerate(good.taps) if (tap.stage, tap.name) == ("forward", "head"))
    probe(content)["taps"] = [*probe(content)["taps"], good.taps[place].model_dump()]
    sketches = content["arrays"]["sketches"]["sketch"]
    other = make_record().arrays["sketches"]["sketch"][place : place + 1]
    content["arrays"]["sketches"] = {"sketch": np.concatenate([sketches, other])}


TAPS: dict[str, tuple[Change, dict[str, Any]]] = {
    "1 of 4 outputs": (only("embed"), {}),
    "1 of 4 outputs, beside a drift": (only("embed"), {"noise": {"layer.norm": 2e-5}}),
    "2 of 4 outputs": (only("embed", "layer.linear"), {"noise": {"head": 2e-5}}),
    "no output of the last module": (only("embed", "layer.linear", "layer.norm"), {"noise": {"head": 2e-5}}),
    "renamed gradients": (renamed, {"gradient_factor": 1.25}),
    "an output twice": (sketched_twice, {"noise": {"head": 2e-5}}),
    "an output of an unknown module": (
        lambda c: probe(c)["taps"][0].update(name="bogus"), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAPS)
def test_a_tensor_that_is_not_sketched_hides_no_difference(name: str) -> None:
    change, plan = TAPS[name]
    assert verdict(change, **plan) == "invalid"
    assert not stands_alone(rounded(change, **plan))


# Rows.


def no_rows(content: Content) -> None:
    content["evidence"]["data"].update(num_rows=0, rows_sha256="f" * 64)
    content["arrays"]["rows"] = {}


def one_row(content: Content) -> None:
    content["evidence"]["data"].update(num_rows=1)
    content["arrays"]["rows"] = {name: rows[:1] for name, rows in content["arrays"]["rows"].items()}


def another_row(content: Content) -> None:
    rows = dict(content["arrays"]["rows"])
    rows["row_id"] = np.array([*rows["row_id"][:-1], 99])
    content["arrays"]["rows"] = rows


ROWS: dict[str, Change] = {
    "no rows": no_rows,
    "1 of 30 rows": one_row,
    "another row": another_row,
    "equal rows with another digest": lambda c: c["evidence"]["data"].update(rows_sha256="f" * 64),
}


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_not_shown_are_not_equal(name: str, edited: bool) -> None:
    def text(content: Content) -> None:
        rows = dict(content["arrays"]["rows"])
        rows["text"] = rows["text"] + np.uint64(1)
        content["arrays"]["rows"] = rows
        content["evidence"]["data"]["rows_sha256"] = "e" * 64

    changes = (text, ROWS[name]) if edited else (ROWS[name],)
    assert verdict(*changes) in ("invalid", "drift")
    if edited:
        assert verdict(text) == "drift"


def test_rows_of_a_renamed_manifest_are_shown_too() -> None:
    def moved(content: Content) -> None:
        content["evidence"]["data"]["manifest_sha256"] = "9" * 64

    assert verdict(moved) == "pass"
    assert verdict(moved, no_rows) == "invalid"


# Selfcheck and other numbers.


def ordered(content: Content) -> None:
    content["nonce"] = "n" * 32


def checked(verdict_: str) -> Change:
    return lambda content: content["evidence"].update(selfcheck={"verdict": verdict_, "at": "x"})


def test_a_rounds_training_without_its_selfcheck_is_inconclusive() -> None:
    asked = in_spec("probe", portable_steps=2)
    lost: Change = lambda content: probe(content).update(portable={"windows": [], "lost": "out of memory"})  # noqa: E731
    plain = edit(whole(), asked, lost)
    assert compare(plain, edit(whole(), asked, lost, ordered)).verdict == "inconclusive"
    assert compare(plain, edit(whole(), asked, lost, ordered, checked("pass"))).verdict == "pass"
    assert compare(plain, edit(whole(), asked, lost, ordered, checked("unknown"))).verdict == "pass"
    # The trainer checks none without windows, and none without an order.
    assert compare(whole(), edit(whole(), ordered)).verdict == "pass"
    assert compare(plain, plain).verdict == "pass"
    assert compare(edit(plain, ordered), plain).verdict == "inconclusive"


def of_steps(**fields: Any) -> Change:
    return lambda content: set_all(probe(content), **fields)


def of_taps(**fields: Any) -> Change:
    def change(content: Content) -> None:
        probe(content)["taps"] = [{**tap, **fields} for tap in probe(content)["taps"]]

    return change


def not_a_number(content: Content) -> None:
    content["arrays"]["sketches"] = {"sketch": content["arrays"]["sketches"]["sketch"] * np.nan}


def settings(**given: Any) -> Change:
    return lambda content: probe(content)["optimizer"][0].update(settings=given)


def log(content: Content) -> Content:
    result: Content = content["evidence"]["speed"]
    return result


LISTS = ("num_rows", "losses", "learning_rates")
EMPTY_LOG: Content = {**{key: [] for key in LISTS}, "batches": {}, "weights": []}
TORCH = {"torch": "3" * 16}
BOTH: dict[str, tuple[Change, str]] = {
    "no torch generator": (of_steps(generators=GENERATORS), "inconclusive"),
    "a generator of an unknown name": (of_steps(generators=GENERATORS | TORCH | {"bogus": "4" * 16}), "inconclusive"),
    "no optimizer settings": (settings(), "inconclusive"),
    "no optimizer": (lambda c: probe(c).update(optimizer=[]), "inconclusive"),
    "no loss of the evaluation": (lambda c: probe(c)["evaluation"].update(loss=None), "invalid"),
    "no accuracy of the evaluation": (lambda c: probe(c)["evaluation"].update(accuracy=None), "invalid"),
    "sketches that are not finite": (not_a_number, "invalid"),
    "no norms": (of_taps(norm=None), "invalid"),
    "no gradient norm, beside a loss scale": (of_steps(gradient_norm=None, loss_scale=1.0), "inconclusive"),
    "no wall time": (lambda c: c["evidence"]["speed"].update(wall_seconds=None), "inconclusive"),
    "an empty log": (lambda c: log(c).update(EMPTY_LOG), "inconclusive"),
    "a log of the first steps": (lambda c: log(c).update({key: log(c)[key][:5] for key in LISTS}), "invalid"),
    "a log without losses": (lambda c: log(c).update(losses=[]), "inconclusive"),
    "a log without the labels": (lambda c: log(c)["batches"].pop("labels"), "inconclusive"),
    "labels of the first steps": (lambda c: log(c)["batches"].update(labels=["0" * 16] * 5), "invalid"),
    "no checks of speed": (lambda c: c["evidence"]["speed"].update(production=None), "inconclusive"),
    "empty checks of speed": (lambda c: c["evidence"]["speed"].update(production={}), "inconclusive"),
    "no proofs of the probe": (lambda c: probe(c).update(proofs=[]), "inconclusive"),
    "no proofs of learn": (lambda c: c["evidence"]["learn"].update(proofs=[]), "inconclusive"),
    "no windows of speed": (lambda c: c["evidence"]["speed"].update(portable=None), "inconclusive"),
    "no step in the windows of speed": (lambda c: c["evidence"]["speed"].update(portable=windows()), "inconclusive"),
    "not all windows of speed": (lambda c: c["evidence"]["speed"].update(portable=windows(0)), "invalid"),
    "no windows of learn": (lambda c: c["evidence"]["learn"].update(portable=None), "inconclusive"),
    "no step in the windows of learn": (lambda c: c["evidence"]["learn"].update(portable=windows()), "inconclusive"),
    "not all windows of learn": (lambda c: c["evidence"]["learn"].update(portable=windows(7)), "invalid"),
    "windows of learn at another step": (lambda c: c["evidence"]["learn"].update(portable=windows(0, 3)), "invalid"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOTH)
def test_a_missing_number_is_no_pass_even_if_both_records_lack_it(name: str) -> None:
    change, expected = BOTH[name]
    assert compare(whole(change), whole(change)).verdict == expected
    assert verdict(change) != "pass"
    assert not stands_alone(whole(change))


def test_a_gpus_generator_belongs_to_its_record() -> None:
    gpu = {"name": "g", "uuid": "u", "memory_bytes": 1}
    lost = edit(whole(), lambda c: c["fingerprint"].update(gpus=[gpu]))
    assert not stands_alone(lost)
    assert stands_alone(edit(lost, of_steps(generators=GENERATORS | TORCH | {"cuda:0": "5" * 16})))


@pytest.mark.parametrize("key", ["betas.0", "eps", "weight_decay", "class"])
def test_a_setting_that_one_optimizer_lacks_is_a_drift(key: str) -> None:
    def without(content: Content) -> None:
        group = probe(content)["optimizer"][0]
        group["settings"] = {name: value for name, value in group["settings"].items() if name != key}

    assert verdict(without) in ("drift", "inconclusive")
    added = settings(**dict(_settings(whole())), decoupled_weight_decay=True)
    assert verdict(added) == "pass"


def _settings(record: LoadedRecord) -> dict[str, Any]:
    assert record.record.evidence.probe is not None
    return record.record.evidence.probe.optimizer[0].settings


# A reference that withholds evidence.


def lacks_one_output(content: Content) -> None:
    keep_taps(content, lambda tap: (tap["step"], tap["stage"], tap["name"]) != (2, "forward", "layer.norm"))


def lacks_shards(content: Content) -> None:
    content["evidence"]["data"]["shards"] = []
    content["evidence"]["learn"]["evaluations"] = [evaluation(4, 1), evaluation(8, 1)]


def read_fewer_rows(content: Content) -> None:
    content["evidence"]["data"]["num_rows"] = 29
    content["arrays"]["rows"] = {name: rows[1:] for name, rows in content["arrays"]["rows"].items()}


WITHHELD: dict[str, Change] = {
    "an output at one step": lacks_one_output,
    "all outputs but one": only("embed"),
    "a gradient at one step": lambda c: keep_taps(
        c, lambda tap: (tap["step"], tap["stage"], tap["name"]) != (2, "gradient", "head.weight")
    ),
    "the evaluation": lambda c: c["arrays"].update(evaluation={}),
    "the logits": lambda c: c["arrays"]["evaluation"].pop("logits"),
    "the shards": lacks_shards,
    "a row": read_fewer_rows,
    "the digest of its rows": lambda c: c["evidence"]["data"].update(rows_sha256="f" * 64),
    "its generators": of_steps(generators=GENERATORS),
    "its log": lambda c: c["evidence"]["learn"].update(batches={}),
    "its evaluation's step": lambda c: probe(c)["evaluation"].update(step=3000),
    "its norms": of_taps(norm=None),
}  # fmt: skip


@pytest.mark.parametrize("same_bits", [False, True])
@pytest.mark.parametrize("name", WITHHELD)
def test_a_reference_that_withholds_evidence_decides_nothing_for_others(name: str, same_bits: bool) -> None:
    def platform(at: int) -> LoadedRecord:
        changes = [WITHHELD[name]] if at == 0 else []
        made = whole(*changes) if same_bits or at == 0 else rounded(*changes)
        return LoadedRecord(made.record.replace(record_id=NAMES[at], platform=NAMES[at]), made.folder, made.arrays)

    records = {Assignment(NAMES[at], "w", MAIN): platform(at) for at in range(3)}
    before = whole()
    accepted = {
        name: LoadedRecord(before.record.replace(record_id=f"old-{name}", platform=name), before.folder, before.arrays)
        for name in NAMES
    }
    results = judge_harvest(make_round(), GatheredRecords(records), {"w": accepted}, {}, {})["w"]
    found = {platform: result.verdict for platform, result in results.items()}
    assert found["aws"] != "pass"
    assert (found["azure"], found["gcp"]) == ("pass", "pass")
