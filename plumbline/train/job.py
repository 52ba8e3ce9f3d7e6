"""Training: stage data, run all parts, write the record."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from plumbline.data.staging.order import plan_rows, planned_files
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.evidence import Evidence, SelfcheckEvidence
from plumbline.schema.fingerprint import Expected, machine_mismatches
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import Exit, RunRecord
from plumbline.schema.spec import RunSpec
from plumbline.train.context import Context
from plumbline.train.exits import clear_exits, conclude
from plumbline.train.experiment import ExperimentRun
from plumbline.train.failure import TrainingFailedError
from plumbline.train.learn import LearnRun
from plumbline.train.learn_experiment import LearnExperiment
from plumbline.train.machine.fingerprint import ask_devices, read_fingerprint
from plumbline.train.models.model import read_weights
from plumbline.train.probe import ProbeRun
from plumbline.train.ranks import Ranks, join_ranks
from plumbline.train.record_files import clear_parts, write_parts, write_record
from plumbline.train.replay import Bundle, read_bundle
from plumbline.train.results import RunResults
from plumbline.train.rows import Rows
from plumbline.train.selfcheck import first_step
from plumbline.train.selfcheck_learn import learn_difference_once
from plumbline.train.source import DataSource, open_source, waited
from plumbline.train.speed import SpeedRun


@dataclass(frozen=True)
class TrainJob:
    """Request for one training, with the identity of its record."""

    spec: RunSpec
    out: Path
    data: str | None
    cache: Path
    platform: str
    record_id: str
    round_id: str = ""
    experiment: Path | None = None
    import_seconds: float = 0.0
    attempt: int = 0
    nonce: str = ""
    expected: Expected | None = None
    """Required machine; `None` allows any."""
    manifest: str = ""
    """Digest of the manifest in the cache, if files were staged beforehand; default: the spec's."""


def prepare_context(job: TrainJob, ranks: Ranks, source: DataSource, stop: threading.Event) -> Context:
    """Stage the first files, read the weights, return the shared state."""
    plan = plan_rows(job.spec, source.manifest)
    source.start(planned_files(plan, source.manifest))
    rows = Rows(job.spec, source, plan.wanted)
    path = source.fetch(job.spec.model.weights_key, job.spec.model.weights_sha256)
    weights = read_weights(path, job.spec.model.weights_key)
    draw, is_checked = "" if job.experiment else job.round_id, job.experiment is None
    return Context(job.spec, ranks, job.out, plan, rows, weights, stop, draw, is_checked)


@contextlib.contextmanager
def open_run(job: TrainJob, stop: threading.Event) -> Iterator[Context]:
    """Prepare the shared run state for running a single part."""
    job.out.mkdir(parents=True, exist_ok=True)
    with join_ranks() as ranks, open_source(job.spec, job.data, job.cache, manifest_sha256=job.manifest) as source:
        yield prepare_context(job, ranks, source, stop)


def _run(findings: RunResults, part: str, run: ProbeRun | SpeedRun | LearnRun) -> None:
    setattr(findings, part, run)
    with findings.timed(part):
        run.run()


def _run_experiment(findings: RunResults, context: Context, bundle: Bundle) -> None:
    """Run only the experiment's part, with the reference's values restored."""
    spec = context.spec
    if bundle.experiment.part == "learn":
        if spec.learn is None:
            raise ConfigurationError("has no learning curve for an experiment", where="spec", key="learn")
        _run(findings, "learn", LearnExperiment(context, spec.learn, bundle))
        return
    if spec.probe is None:
        raise ConfigurationError("has no probe for an experiment", where="spec", key="probe")
    _run(findings, "probe", ExperimentRun(context, spec.probe, bundle))


def _run_parts(findings: RunResults, context: Context, source: DataSource) -> None:
    kinds = {"probe": ProbeRun, "speed": SpeedRun, "learn": LearnRun}
    parts = {part: setting for part in kinds if (setting := getattr(context.spec, part))}
    if findings.bundle:
        _run_experiment(findings, context, findings.bundle)
        parts = {}
    for place, (part, setting) in enumerate(parts.items()):
        if place:
            context.release()
        _run(findings, part, kinds[part](context, setting))
    with findings.timed("rows"):
        findings.data = context.rows.evidence()
    findings.timings |= waited(source)


def _write(job: TrainJob, findings: RunResults, evidence: Evidence, ranks: Ranks, ending: Exit) -> None:
    """Write the record's files, then the record itself."""
    context = findings.context
    with findings.timed("write"):
        rows = context.rows.table() if context and findings.data else None
        names = write_parts(job.out, findings.arrays(), rows)
        parts = [
            DataFile(key=name, size=(job.out / name).stat().st_size, sha256=digest_file(job.out / name))
            for name in names
        ]
    numerics, bits, operations = (
        (context.numerics, context.mantissa_bits, context.operations) if context else ({}, {}, {})
    )
    write_record(
        job.out,
        RunRecord(
            record_id=job.record_id,
            platform=job.platform,
            round_id=job.round_id,
            attempt=job.attempt,
            nonce=job.nonce,
            spec_sha256=job.spec.digest,
            spec=job.spec,
            experiment=findings.bundle.experiment if findings.bundle else None,
            started_at=findings.started_at,
            finished_at=findings.finished_at,
            fingerprint=read_fingerprint(ranks, numerics, bits, operations),
            evidence=evidence,
            timings=findings.timings,
            exit=ending,
            parts=tuple(parts),
        ),
    )


def _check_machine(job: TrainJob, ranks: Ranks) -> None:
    """Raise `TrainingFailedError` if this machine is not the expected one."""
    wrong = machine_mismatches(job.expected, read_fingerprint(ranks, {}, {})) if job.expected else ()
    what = "; ".join(map(str, wrong))
    if ranks.num_missing and not what:
        what = f"gpus: found {ranks.world - ranks.num_missing}, {ranks.world} processes need one each"
    # The machine of another process may be the wrong one, and the first process writes the record.
    if reasons := [reason for reason in ranks.gather(what) if reason]:
        raise TrainingFailedError(reasons[0], code="device", where=job.platform)


def _selfcheck(job: TrainJob, ranks: Ranks) -> SelfcheckEvidence | None:
    """Self-check software and device of every process; return the first difference."""
    if job.expected is None or job.experiment or job.spec.probe is None or not job.spec.probe.portable_steps:
        return None
    check = first_step(ranks.device, job.spec.task)
    if check.verdict != "drift" and (at := learn_difference_once(ranks, job.cache)):
        check = SelfcheckEvidence(verdict="drift", at=at)
    answers = ranks.gather(check.model_dump_json())
    checks = [SelfcheckEvidence.model_validate_json(answer) for answer in answers]
    return next((check for check in checks if check.verdict == "drift"), checks[0])


def run_job(job: TrainJob, stop: threading.Event) -> None:
    """Train and write the record, then re-raise any failure."""
    findings = RunResults(datetime.now(timezone.utc))
    findings.timings["import"] = job.import_seconds
    job.out.mkdir(parents=True, exist_ok=True)
    with join_ranks() as ranks:
        if ranks.is_first:
            clear_parts(job.out)
            clear_exits(job.out)
        ranks.gather(None)
        evidence: Evidence | None = None
        try:
            ask_devices(ranks)
            _check_machine(job, ranks)
            with findings.timed("selfcheck"):
                findings.selfcheck = _selfcheck(job, ranks)
            findings.bundle = read_bundle(job.experiment) if job.experiment else None
            with open_source(
                job.spec, job.data, job.cache, manifest_sha256=job.manifest, emit_progress=ranks.is_first
            ) as source:
                with findings.timed("stage"):
                    findings.context = prepare_context(job, ranks, source, stop)
                _run_parts(findings, findings.context, source)
            # Still inside the try block: this reads the device again, which may have died.
            evidence = findings.evidence() if ranks.is_first else None
        except Exception as error:  # the process's boundary: the record reports every error
            place = findings.context.place if findings.context else ("", None)
            known, ending = conclude(error, ranks, job.out, place, stop)
            if ranks.is_first:
                _write(job, findings, findings.remains(), ranks, ending)
            raise known from error
        if evidence is not None:
            _write(job, findings, evidence, ranks, Exit(status="completed"))
            if findings.learn:
                findings.learn.finish()
