"""Record of a captured training: the log, the recorded steps, and what only a captured training has."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import accumulate, chain
from typing import Any

import numpy as np
from torch import nn

from plumbline.environments.loaded import write_loaded
from plumbline.schema.captured import MAX_ROWS, CapturedEvidence, CapturedSpec
from plumbline.schema.digest import SHORT_DIGITS, digest_bytes, digest_file, digest_json
from plumbline.schema.evidence import SKETCH_SIZE, Evidence, ProbeEvidence, SpeedEvidence
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import Exit, RunRecord
from plumbline.schema.sketch import to_mark
from plumbline.schema.spec import Precision
from plumbline.schema.step_log import Inconsistency
from plumbline.schema.variables import NONCE, variable
from plumbline.train.capture.imposed import Rerun
from plumbline.train.capture.loss import LOSS
from plumbline.train.capture.recorded import RecordedStep
from plumbline.train.capture.steps import CapturedStep, Steps
from plumbline.train.digests import finite, host_arrays, shared_mark
from plumbline.train.machine.fingerprint import read_fingerprint
from plumbline.train.numerics import read_settings
from plumbline.train.optimizers import describe_optimizer, shown_rates
from plumbline.train.record_files import clear_parts, write_parts, write_record

_WARM_UP, _LEAST_TIMED = 2, 30
"""Steps before the step time counts, and the least number of timed steps that give a throughput."""
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def _read(values: Sequence[Any]) -> list[Any]:
    """Return tensors' values as Python numbers, with one copy from the device; others as they are."""
    arrays = iter(host_arrays([each for each in values if hasattr(each, "detach")]))
    return [next(arrays).tolist() if hasattr(each, "detach") else each for each in values]


def _digest(sums: Any) -> str:
    return digest_bytes(repr(sums).encode())[:SHORT_DIGITS]


def _of_process(steps: Sequence[CapturedStep]) -> list[dict[str, Any]]:
    """Return each step's values of this process, on the host."""
    found = []
    for step in steps:
        fields = _by_field([each.marks for each in step.passes]), _by_field([each.floats for each in step.passes])
        marks = {name: list(chain.from_iterable(_read(each))) for name, each in fields[0].items()}
        floats = {name: np.sum(_read(each), axis=0).tolist() for name, each in fields[1].items()}
        own = dict(zip((f"batch.{name}" for name in step.batch), _read(list(step.batch.values())), strict=True))
        losses = [each.loss for each in step.passes if each.loss is not None]
        given = [step.loss] if step.loss is not None else [each.double().mean() for each in losses]
        found.append({
            "rows": step.rows or sum(each.rows for each in step.passes), "marks": marks | own, "floats": floats,
            "loss": float(np.mean(_read(given))) if given else math.nan,
            "logits": [_digest(each) for each in _read([each.logits for each in step.passes])],
            "gradients": _read([step.gradients])[0], "weights": _read([step.weights])[0],
            "generators": step.generators,
        })  # fmt: skip
    return found


def _by_field(passes: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of all passes, by field."""
    names = {name for each in passes for name in each}
    return {name: [each[name] for each in passes if name in each] for name in names}


def _columns(log: Steps, sides: Sequence[list[dict[str, Any]]], rows: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Return the columns of the log, over all processes; `rows` are the checksums of their rows."""
    steps, norms = log.steps, {full.step: full for full in log.full}
    places = range(len(steps))

    def each(name: str) -> list[list[Any]]:
        return [[side[place][name] for side in sides] for place in places]

    generators: dict[str, list[tuple[int, str]]] = {}
    for place, found in enumerate(each("generators")):
        for name in found[0]:
            generators.setdefault(name, []).append((place, shared_mark([side.get(name) for side in found])))
    return {
        "num_rows": [sum(found) for found in each("rows")],
        "batches": {name: [_digest(marks) for marks in found] for name, found in rows.items()},
        "losses": [finite(float(np.mean(found))) for found in each("loss")],
        "learning_rates": [shown_rates(step.rates) for step in steps] if all(step.rates for step in steps) else [],
        "gradient_norms": [finite(norms[place].gradient_norm) if place in norms else None for place in places],
        "clipped_norms": [finite(norms[place].seen_norm) if place in norms else None for place in places],
        "weights": [(0, _digest(_read([log.start_weights])[0]))]
        + [(place + 1, _digest(found[0])) for place, found in enumerate(each("weights"))],
        # The state of a generator that nothing draws from is no part of the training.
        "generators": {
            name: found for name, found in sorted(generators.items()) if len({mark for _, mark in found}) > 1
        },
        "is_training": [step.is_training for step in steps],
        "logits": [digest_json(found)[:SHORT_DIGITS] for found in each("logits")],
        "logits_dtype": [step.logits_dtype for step in steps], "loss_dtype": [step.loss_dtype for step in steps],
        "gradients": [_of_taps(norms[place]) if place in norms else None for place in places],
        "clipped": [_digest(found) if any(found) else None for found in each("gradients")],
        "loss_scales": [step.scale for step in steps],
        "dropout": sorted({float(module.p) for module in log.run.model.modules() if isinstance(module, _DROPOUT)}),
        "inconsistent": [found.to_json() for found in _apart(each("weights"))],
    }  # fmt: skip


def _of_taps(full: RecordedStep) -> str | None:
    """Return the digest of a recorded step's own gradients."""
    found = {tap.name: tap.sha256 for tap in full.taps if tap.stage == "gradient"}
    return digest_json(found)[:SHORT_DIGITS] if found else None


def _apart(weights: list[list[Any]]) -> list[Inconsistency]:
    """Return the first step behind which a process holds other weights than the first one."""
    for place, found in enumerate(weights):
        rank = next((rank for rank, each in enumerate(found) if each != found[0]), None)
        if rank is not None:
            return [Inconsistency(step=place + 1, rank=rank, part="weights", event="processes")]
    return []


def _rows(sides: Sequence[list[dict[str, Any]]]) -> dict[str, list[list[int]]]:
    """Return the checksums of all processes' rows, by field and step."""
    names = sorted({name for side in sides for step in side for name in step["marks"]})
    steps = list(zip(*sides, strict=True))
    return {name: [[mark for own in step for mark in own["marks"].get(name, ())] for step in steps] for name in names}


def _kept_rows(rows: dict[str, list[list[int]]]) -> dict[str, list[list[str]]]:
    """Return the rows of the first steps, as many as a record holds."""
    found: dict[str, list[list[str]]] = {}
    for name, steps in rows.items():
        sums = accumulate(len(step) for step in steps)
        kept = sum(num <= MAX_ROWS for num in sums)
        found[name] = [[to_mark(mark) for mark in step] for step in steps[:kept]]
    return found


def _inputs(sides: Sequence[list[dict[str, Any]]]) -> dict[str, list[Any]]:
    """Return the sketches of all processes' float inputs, summed, by field and step."""
    names = sorted({name for side in sides for step in side for name in step["floats"]})
    found: dict[str, list[Any]] = {name: [] for name in names}
    for step in zip(*sides, strict=True):
        for name in names:
            sums = [own["floats"].get(name) for own in step]
            total = np.sum(sums, axis=0) if None not in sums else None
            found[name].append(total.tolist() if total is not None and np.isfinite(total).all() else None)
    return found


def _speed(log: Steps, num_rows: Sequence[int]) -> SpeedEvidence | None:
    """Return the throughput of the steps that are not recorded in full, nor follow one; `None` with too few of them."""
    recorded = {full.step for full in log.full}
    places = [
        place for place in range(1, len(log.steps)) if not recorded & {place, place - 1} and place >= _WARM_UP
    ]  # fmt: skip
    seconds = np.array([log.steps[place].ended - log.steps[place - 1].ended for place in places])
    if len(places) < _LEAST_TIMED or seconds.min() <= 0:
        return None
    low, high = np.quantile(seconds, (0.25, 0.75))
    return SpeedEvidence(
        steps=len(places), warmup_steps=_WARM_UP, tokens_per_second=None, step_seconds=float(np.median(seconds)),
        samples_per_second=sum(num_rows[place] for place in places) / float(seconds.sum()),
        step_seconds_quartiles=(float(low), float(high)), step_seconds_p95=float(np.quantile(seconds, 0.95)),
        wall_seconds=float(seconds.sum()),
    )  # fmt: skip


def _evidence(log: Steps, sides: Sequence[list[dict[str, Any]]]) -> Evidence:
    run, rows = log.run, _rows(sides)
    groups = [group for each in run.optimizers for group in describe_optimizer(run.model, each)]
    probe = ProbeEvidence(
        **_columns(log, sides, rows), optimizer=tuple(groups),
        taps=tuple(tap for full in log.full for tap in full.taps),
        proofs=tuple(full.proof for full in log.full if full.proof is not None),
    )  # fmt: skip
    unknown = [*run.unknown, "the dataset", "an evaluation's numbers"]
    lost = log.functions.lost if log.functions is not None else "not recorded"
    unknown += [f"the functions of the first step: {lost}"] if lost else []
    is_proven = any(error.stage == "loss" for proof in probe.proofs for error in proof.errors)
    unknown += [] if is_proven or any(why.startswith(LOSS) for why in unknown) else [LOSS]
    unknown += ["rates, gradients before and after the update"] if not run.optimizers else []
    speed = _speed(log, probe.num_rows)
    unknown += [f"throughput: fewer than {_LEAST_TIMED} timed steps"] if speed is None else []
    unknown += ["the update: no optimizer ran"] if run.optimizers and not any(s.is_updated for s in log.steps) else []
    unknown += ["the loss"] if all(loss is None for loss in probe.losses) else []
    stale = [(full.step, full.stale) for full in log.full if full.stale]
    first = log.full[0] if log.full else None
    captured = CapturedEvidence(
        identity=run.identity, unknown=tuple(unknown[:1000]), recorded=tuple(full.step for full in log.full),
        updated=tuple(step.is_updated for step in log.steps) if run.optimizers else (),
        inputs=_inputs(sides), window=log.window, loss=first.portable_loss if first else None,
        functions=log.functions, rows=_kept_rows(rows), stale=tuple(stale[:1000]),
        evaluations=tuple((step, to_mark(int(_read([mark])[0]))) for step, mark in log.evaluations[:10_000]),
        exchanges=tuple(full.exchange for full in log.full if full.exchange is not None),
        unheld=tuple(first.unheld) if first is not None else (),
        num_trained=sum(step.has_gradient for step in log.steps),
        evaluating=tuple(first.evaluating) if first is not None else (), drawn=log.first_evaluation.drawn,
        replicated=run.is_replicated, start=run.start,
    )  # fmt: skip
    return Evidence(model=run.described, probe=probe, speed=speed, captured=captured)


def write(log: Steps, error: BaseException | None, rerun: Rerun | None) -> None:
    """Write the record's folder in the first process."""
    run = log.run
    write_loaded(os.environ)
    sides = run.ranks.gather(_of_process(log.steps))
    num = min(len(side) for side in sides)
    log.steps = log.steps[:num]
    if run.parts.world > 1 and num >= run.steps:
        with run.aside("other processes"):
            marks = run.parts.gather([full.marks for full in log.full])
            for full, *own in zip(log.full, *marks, strict=False):
                full.compare_parts(own)
    if run.ranks.rank:
        return
    evidence = _evidence(log, [side[:num] for side in sides])
    run.folder.mkdir(parents=True, exist_ok=True)
    clear_parts(run.folder)
    sketches = np.reshape([each for full in log.full for each in full.sketches], (-1, SKETCH_SIZE))
    arrays = {"sketches": {"sketch": sketches}} | ({"capture": rerun.keeper.arrays} if rerun is not None else {})
    parts = [
        DataFile(key=name, size=(run.folder / name).stat().st_size, sha256=digest_file(run.folder / name))
        for name in write_parts(run.folder, arrays, None)
    ]
    is_done = num >= run.steps
    message = f"ended after {num} of {run.steps} steps" + (f": {type(error).__name__}" if error else "")
    formats: list[Precision] = [full.precision for full in log.full]
    spec = CapturedSpec(
        workload=run.name, seed=run.seed, steps=run.asked,
        batch_size=max(evidence.probe.num_rows[:1], default=1) if evidence.probe else 1,
        precision=next((each for each in formats if each != "fp32"), "fp32"),
    )  # fmt: skip
    numerics = {f"probe.{name}": value for name, value in read_settings().items()}
    seconds = time.perf_counter() - run.began
    write_record(
        run.folder,
        RunRecord(
            record_id=f"{run.name}-{run.platform}-{secrets.token_hex(4)}"[:63], platform=run.platform,
            nonce=variable(NONCE), experiment=rerun.experiment if rerun is not None else None,
            spec_sha256=spec.digest, spec=spec, started_at=run.started_at,
            finished_at=run.started_at + timedelta(seconds=seconds), evidence=evidence, parts=tuple(parts),
            fingerprint=read_fingerprint(run.ranks, numerics, {}), timings={"train": seconds, "capture": run.spent},
            exit=Exit(status="completed") if is_done else Exit(status="failed", code="error", message=message),
        ),
    )  # fmt: skip
