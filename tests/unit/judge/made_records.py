"""Whole records with changes, for the tests of pairs, rounds and learning curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord
from plumbline.schema.sketch import marks_of
from plumbline.schema.verdict import Judgement

from .conftest import EVALUATION_ROWS, PROOFS, STEPS, make_record, other_kernel, set_step

Content = dict[str, Any]
Change = Callable[[Content], None]
LEARN = {"steps": 8, "evaluate_every": 4, "checkpoint_every": 8, "evaluation_rows": EVALUATION_ROWS}
SPEED = {"steps": 10}
LOG = [f"{step:016x}" for step in range(8)]


def judge(reference: LoadedRecord, **changes: Any) -> Judgement:
    """Compare the reference with a record with these changes."""
    return compare(reference, make_record(**changes))


def codes(judgement: Judgement) -> list[str]:
    """Return the codes of a judgement's causes."""
    return [cause.code for cause in judgement.causes]


def evaluation(step: int, num_rows: int = EVALUATION_ROWS) -> Content:
    return {
        "step": step, "num_rows": num_rows, "rows_sha256": "a" * 64, "training_mode": False,
        "predictions_sha256": "b" * 64, "logits_sha256": "c" * 64, "loss": 0.5, "accuracy": 0.5,
    }  # fmt: skip


def windows(*steps: int, **changes: Any) -> Content:
    """Return the windows of a part at these steps, each with these changes."""
    window = {
        "loss": "0x1p-1", "outputs": [["embed", "a" * 16], ["head", "b" * 16]],
        "gradients": [["head.weight", "c" * 16]], "weights": [["head.weight", "d" * 16]],
    }  # fmt: skip
    return {"windows": [{**window, "step": step, **changes} for step in steps]}


def _of_all_parts(content: Content) -> None:
    spec = make_record().record.spec.replace(learn=LEARN, speed=SPEED)
    content.update(spec=spec.model_dump(), spec_sha256=spec.digest)
    content["evidence"]["learn"] = {
        "steps": 8, "losses": [0.5] * 8, "evaluations": [evaluation(4), evaluation(8)], "num_rows": [4] * 8,
        "weights": [[0, "e" * 16], [8, "d" * 16]], "learning_rates": [1e-3] * 8, "gradient_norms": [0.5] * 8,
        "batches": {"row_ids": LOG, "input_ids": LOG, "labels": LOG},
        "dropout": [0.1], "portable": windows(0, 7), "proofs": PROOFS, "chance": 0.0,
    }  # fmt: skip
    content["evidence"]["speed"] = {
        "steps": 10, "warmup_steps": 4, "samples_per_second": 10.0, "tokens_per_second": 80.0, "step_seconds": 0.4,
        "wall_seconds": 4.0,
        **speed_log(content), "proofs": PROOFS,
        "portable": {"windows": [], "lost": "out of memory"}, "production": {"lost": "out of memory"},
    }  # fmt: skip


def speed_log(content: Content, num_steps: int = 14) -> Content:
    """Return the log of a speed part that trains on the probe's batches, again and again."""
    batches = content["arrays"]["batches"]
    marks = {name: (values * num_steps)[:num_steps] for name, values in marks_of(batches).items()}
    rows = [content["spec"]["batch_size"]] * num_steps
    return {
        "num_rows": rows, "batches": marks, "losses": [0.5] * num_steps, "learning_rates": [1e-3] * num_steps,
        "gradient_norms": [0.5] * num_steps, "weights": [[0, "0" * 16]], "dropout": [],
    }  # fmt: skip


def whole(*changes: Callable[[Content], Any], **plan: Any) -> LoadedRecord:
    """Return a record of all three parts of a plan, changed by `changes`."""
    return edit(make_record(**plan), _of_all_parts, *changes)


def rounded(*changes: Callable[[Content], Any], **plan: Any) -> LoadedRecord:
    """Return such a record of a machine whose rounding differs."""
    return whole(*changes, **({"fingerprint": other_kernel(), "noise": {"layer.linear": 3e-7}} | plan))


def probe(content: Content) -> Content:
    result: Content = content["evidence"]["probe"]
    return result


def keep_taps(content: Content, keep: Callable[[Content], bool]) -> None:
    taps = list(probe(content)["taps"])
    kept = [place for place, tap in enumerate(taps) if keep(tap)]
    probe(content)["taps"] = [taps[place] for place in kept]
    content["arrays"]["sketches"] = {"sketch": content["arrays"]["sketches"]["sketch"][kept]}


def with_evidence(made: LoadedRecord, **parts: Any) -> LoadedRecord:
    evidence = made.record.evidence.replace(**parts)
    return LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)


def named(name: str, **changes: object) -> LoadedRecord:
    made = make_record(**changes)
    return LoadedRecord(made.record.replace(record_id=name, platform=name), made.folder, made.arrays)


def old(name: str, **changes: object) -> LoadedRecord:
    made = named(name, **changes)
    return LoadedRecord(made.record.replace(record_id=f"old-{name}"), made.folder, made.arrays)


def checked(name: str, verdict: str, **changes: object) -> LoadedRecord:
    """A platform's record with the selfcheck that stood before its training."""
    at = "outputs of step 0: bert.embeddings.LayerNorm" if verdict == "drift" else ""
    return with_evidence(named(name, **changes), selfcheck={"verdict": verdict, "at": at})


def learned(accuracy: float, losses: tuple[float, ...], last: str, **changes: Any) -> LoadedRecord:
    made = make_record(fingerprint=changes.pop("fingerprint", {}))
    evaluation = made.record.evidence.probe.evaluation.replace(accuracy=accuracy, num_rows=1024)  # type: ignore[union-attr]
    learn = {
        "steps": 2,
        "losses": losses,
        "evaluations": [evaluation.to_json()],
        "weights": [[0, "0" * 16], [changes.get("steps", 2), last * 16]],
        "chance": 0.0,
    }
    return with_evidence(made, learn=learn | changes)


def answered(right: list[int], losses: tuple[float, ...], weights: str, **changes: Any) -> LoadedRecord:
    made = learned(sum(right) / len(right), losses, weights, **changes)
    learn = made.record.evidence.learn
    last = learn.evaluations[-1].replace(num_rows=len(right))  # type: ignore[union-attr]
    evidence = made.record.evidence.replace(learn=learn.replace(evaluations=(last,)))  # type: ignore[union-attr]
    answers = {"row_ids": np.arange(len(right)), "right": np.array(right, np.uint8)}
    return LoadedRecord(made.record.replace(evidence=evidence), made.folder, {**made.arrays, "answers": answers})


def edit(made: LoadedRecord, *changes: Callable[[Content], Any]) -> LoadedRecord:
    content = made.record.model_dump() | {"arrays": {name: dict(arrays) for name, arrays in made.arrays.items()}}
    for change in changes:
        change(content)
    arrays = content.pop("arrays")
    return LoadedRecord(RunRecord.model_validate(content), made.folder, arrays)


def at_step(step: int, **fields: Any) -> Change:
    return lambda content: set_step(probe(content), step, fields)


def in_spec(part: str, **fields: Any) -> Change:
    """Change a part's spec, and the spec's digest."""

    def change(content: Content) -> None:
        content["spec"][part] = {**content["spec"][part], **fields}
        content["spec_sha256"] = make_record().record.spec.replace(**content["spec"]).digest

    return change


def experiment(**fields: Any) -> Change:
    return lambda content: content.update(experiment={"experiment_id": "e", "steps": STEPS, **fields})


def taps_where(keep_tap: Callable[[Content], bool]) -> Change:
    return lambda content: keep_taps(content, keep_tap)


def without(*names: str) -> Change:
    return lambda content: content["evidence"].update(dict.fromkeys(names))


def evaluated(**fields: Any) -> Change:
    return lambda content: probe(content)["evaluation"].update(fields)
