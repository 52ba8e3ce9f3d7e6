"""Accepted record: one captured training as small text, beside the test of a team's repository.

A record that is compared with it takes the same form: what one side leaves out is no difference on the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from plumbline.records.loaded_record import LoadedRecord
from plumbline.schema.base import Model
from plumbline.schema.captured import CapturedEvidence, CapturedSpec, Fp64Pass, SmallSketch
from plumbline.schema.digest import SHORT_DIGITS, digest_bytes, digest_json
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import SKETCH_SIZE, ModelEvidence, ProbeEvidence, Tap
from plumbline.schema.record import RunRecord, check_content
from plumbline.schema.sketch import reduced
from plumbline.schema.tolerance import is_over
from plumbline.schema.versions import read_any_version

MAX_ACCEPTED_BYTES = 100_000
Group = Literal["functions", "updates", "rows", "formulas", "gradients", "outputs", "modules"]
LEFT_OUT: dict[Group, str] = {
    "functions": "which function or argument of a module differs",
    "updates": "which parameter's update differs first",
    "rows": "which rows of a batch differ",
    "formulas": "the fp64 formulas of most modules",
    "gradients": "which parameter's gradient differs first",
    "outputs": "which module's output differs first",
    "modules": "which module's settings differ, and which parameters are in which group of an optimizer",
}
"""What is unknown without a group, in the order in which a large record gives its groups up."""
_STAGES = {"updates": "optimizer", "gradients": "gradient", "outputs": "forward"}
_FORMULAS = 32
_OF_PYTEST = ("command", "file pytest", "file __main__.py")
"""Identity of the program that ran the test, which is not the training's."""
_DIGITS = 8
_LINE = 320
"""Maximum characters of a value on one line: a tensor, or a column of twenty steps."""


class Accepted(Model):
    """Log of a captured training, with the tensors of its first recorded step."""

    schema_version: Literal[1]
    record: RunRecord
    sketches: tuple[SmallSketch | None, ...]
    """One of each tensor of the record; `None` if not finite."""
    left_out: tuple[Group, ...] = ()

    @property
    def loaded(self) -> LoadedRecord:
        """Return the record as the judge reads it, with sketches padded by zeros."""
        rows = np.zeros((len(self.sketches), SKETCH_SIZE))
        for row, numbers in zip(rows, self.sketches, strict=True):
            row[: len(numbers or (0,))] = numbers or np.nan
        return LoadedRecord(self.record, Path(), {"sketches": {"sketch": rows}})

    def beside(self, candidate: LoadedRecord) -> LoadedRecord:
        """Return a whole record without what this one leaves out."""
        # The pass of the accepted record names the modules that are compared.
        return accepted_form(candidate, [group for group in self.left_out if group != "formulas"]).loaded


def accepted_form(loaded: LoadedRecord, left_out: Iterable[Group] = ()) -> Accepted:
    """Return a record without later steps' tensors, proofs that hold, and `left_out`.

    Raises `InvalidInputError` for a record that is of no captured training.
    """
    record, groups = loaded.record, frozenset(left_out)
    captured, probe, model = _captured(record, str(loaded.folder))
    stages = {stage for group, stage in _STAGES.items() if group not in groups}
    places = [place for place, tap in enumerate(probe.taps) if tap.step == 0 and tap.stage in stages]
    sketches = loaded.sketches.get("sketch", np.zeros((0, SKETCH_SIZE)))
    identity = {
        name: text if len(text) <= SHORT_DIGITS else digest_bytes(text.encode())[:SHORT_DIGITS]
        for name, text in captured.identity.items() if name not in _OF_PYTEST
    }  # fmt: skip
    window = _thin(captured.window) if captured.window is not None and "formulas" in groups else captured.window
    evidence = record.evidence.replace(
        captured=captured.replace(
            identity=identity,
            window=window,
            rows={} if "rows" in groups else captured.rows,
            functions=None if "functions" in groups else captured.functions,
        ).to_json(),
        probe=probe.replace(
            taps=[_tap(probe.taps[place]) for place in places],
            proofs=[each.replace(errors=list(filter(is_over, each.errors))) for each in probe.proofs],
            optimizer=[
                each.replace(parameters=[f"group {_digest(each.parameters)}"]) if "modules" in groups else each
                for each in probe.optimizer
            ],
        ).to_json(),
        model=model.replace(modules=[("model", _digest(model.modules))]) if "modules" in groups else model,
    )
    small = record.replace(
        evidence=evidence.to_json(), parts=(), timings={}, fingerprint=record.fingerprint.replace(hostname="").to_json()
    )
    return Accepted(
        schema_version=1, record=small, sketches=tuple(_small(sketches[place]) for place in places),
        left_out=tuple(group for group in LEFT_OUT if group in groups),
    )  # fmt: skip


def _captured(record: RunRecord, where: str) -> tuple[CapturedEvidence, ProbeEvidence, ModelEvidence]:
    captured, probe, model = (getattr(record.evidence, name) for name in ("captured", "probe", "model"))
    if not isinstance(record.spec, CapturedSpec) or captured is None or probe is None or model is None:
        raise InvalidInputError("is not the record of a captured training", where=where, hint="use plumbline.capture")
    return captured, probe, model


def _tap(tap: Tap) -> Tap:
    return tap if tap.norm is None else tap.replace(norm=float(f"{tap.norm:.{_DIGITS}g}"))


def _small(sketch: Any) -> SmallSketch | None:
    numbers = tuple(float(f"{each:.{_DIGITS}g}") for each in reduced(sketch))
    return numbers if np.isfinite(numbers).all() else None


def _thin(window: Fp64Pass) -> Fp64Pass:
    """Return a pass with some of its tensors, the last output and the first gradient among them."""
    outputs = window.outputs[:: -max(1, len(window.outputs) // _FORMULAS)][::-1]
    return window.replace(outputs=outputs, gradients=window.gradients[:: max(1, len(window.gradients) // _FORMULAS)])


def _digest(values: Sequence[Any]) -> str:
    return digest_json(values)[:SHORT_DIGITS]


def accepted_text(loaded: LoadedRecord) -> tuple[Accepted, str]:
    """Return the accepted form of a record, with as many groups as fit. Raise `InvalidInputError` if none does."""
    form = accepted_form(loaded)
    text = _text(form)
    for group in LEFT_OUT:
        if len(text) <= MAX_ACCEPTED_BYTES:
            break
        smaller = accepted_form(loaded, (*form.left_out, group))
        if len(shorter := _text(smaller)) < len(text):
            form, text = smaller, shorter
    if len(text) > MAX_ACCEPTED_BYTES:
        why = f"has {len(text)} bytes as an accepted record, more than the {MAX_ACCEPTED_BYTES} allowed"
        raise InvalidInputError(why, where=str(loaded.folder), hint="record fewer steps, or a smaller model")
    return form, text


def read_accepted(path: Path) -> Accepted:
    """Read an untrusted accepted record; raise `InvalidInputError` if malformed, of another version or incomplete."""
    accepted = read_any_version(
        Accepted, path, version_at="record.fingerprint.plumbline", exact=("record",), max_bytes=MAX_ACCEPTED_BYTES
    )
    check_content(accepted.record, str(path))
    _, probe, _ = _captured(accepted.record, str(path))
    steps = cast("CapturedSpec", accepted.record.spec).steps
    # An empty column equals nothing, and so would compare with nothing.
    columns = (probe.losses, probe.num_rows, probe.logits, probe.clipped, probe.is_training, probe.weights[1:])
    is_short = any(len(column) != steps for column in columns) or len(accepted.sketches) != len(probe.taps)
    if is_short or accepted.record.exit.status != "completed":
        raise InvalidInputError("lacks steps or sketches", where=str(path), hint="write it again")
    return accepted


def _text(accepted: Accepted) -> str:
    content = accepted.model_dump(mode="json", exclude_defaults=True)
    content["record"]["spec"]["kind"] = "captured"  # a default that tells it from other specs
    return _lines(content) + "\n"


def _lines(value: Any, depth: int = 1) -> str:
    """Return JSON with one value a line where it fits, so that a difference of two texts names it."""
    flat = json.dumps(value, separators=(",", ":"))
    if len(flat) <= _LINE or not isinstance(value, (dict, list)):
        return flat
    pairs = value.items() if isinstance(value, dict) else ()
    inner = [f"{json.dumps(key)}:{_lines(each, depth + 1)}" for key, each in pairs]
    inner = inner or [_lines(each, depth + 1) for each in value]
    pad = "\n" + " " * depth
    return f"{flat[0]}{pad}{f',{pad}'.join(inner)}{pad[:-1]}{flat[-1]}"
