"""Findings, verdicts, and causes of drift."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator

from plumbline.schema.base import Model
from plumbline.schema.errors import ExitCode
from plumbline.schema.fact import Statement
from plumbline.schema.stage import Stage

Outcome = Literal["pass", "drift", "inconclusive", "invalid"]
Sure = Literal["confirmed", "likely", "unattributed"]
CauseCode = Literal[
    "data.content", "data.labels", "data.order", "tokenization", "model.architecture", "weights.init", "rng",
    "precision", "operator", "kernel", "loss", "gradient", "optimizer", "schedule", "evaluation", "nondeterminism",
    "device", "loader", "transfer", "throttling", "slow-device", "contention", "software", "environment",
    "unattributed",
]  # fmt: skip

_SEVERITY: dict[Outcome, int] = {"pass": 0, "inconclusive": 1, "drift": 2, "invalid": 3}
_EXIT: dict[Outcome, ExitCode] = {
    "pass": ExitCode.PASS,
    "drift": ExitCode.DRIFT,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "invalid": ExitCode.INVALID,
}


class Divergence(Model):
    """First place where two runs differ."""

    stage: Stage
    part: Literal["", "probe", "speed", "learn"] = ""
    """Part of the training; empty before the first part, and for the probe."""
    step: int | None = None
    at: str = ""
    """The module, the parameter, the batch field, or `shard KEY row N`."""
    row: int | None = None
    """The row of the dataset, counted as the manifest counts."""


class Finding(Model):
    """Result of one check, with numbers at full precision."""

    check: str
    """Dotted, part first: `probe.forward`, `data.rows`, `learn.accuracy`, `speed.throughput`."""
    outcome: Outcome
    metric: Statement = ""
    observed: float | str | None = None
    limit: float | str | None = None
    unit: str = ""
    against: str = ""
    """`platform NAME` or `baseline RECORD`."""
    detail: Statement = ""
    workload: str = ""
    """Checked workload, in a round."""
    needs_rerun: bool = False
    """Whether an independent rerun of the candidate has to confirm the finding."""

    @field_validator("observed", "limit", mode="before")
    @classmethod
    def _is_finite(cls, value: Any) -> Any:
        """Convert a non-finite number to `None`."""
        return None if isinstance(value, float) and not math.isfinite(value) else value


NoteCode = Literal[
    "equal-bits",  # every bit of the probe is the same
    "portable",  # the windows are equal
    "rounding",  # the runs differ by rounding alone
    "manifest",  # the manifests differ, their rows do not
    "tokenizer",  # the tokenizer files differ, the tokens do not
    "curve",  # the learning curves separate after a bitwise equal probe
    "no-baseline",  # this platform has no accepted record yet
    "odd-one-out",  # a single platform differs from all others
    "accepted-difference",  # two platforms differ as their accepted baselines do
    "reference",  # a different platform than the suite's reference is the reference
    "attempt",  # failed attempts, or a record of a lost run
    "hint",  # the action that a verdict needs
    "remark",  # anything else
]


class Note(Model):
    """Note for people; programs use only its `code`."""

    code: NoteCode = "remark"
    text: Statement
    workload: str = ""
    """Workload of the note; empty if the round has one workload, or for all workloads."""


class Cause(Model):
    """Cause of a drift, with its certainty."""

    code: CauseCode
    sure: Sure
    why: Statement
    evidence: tuple[Statement, ...] = ()
    suspects: tuple[str, ...] = ()
    """Fingerprint differences that could explain this code."""
    tried: tuple[Statement, ...] = ()
    """Experiments with their results."""
    workload: str = ""
    """Workload that drifts, in a round."""


class Judgement(Model):
    """Judgement of one candidate against one reference."""

    verdict: Outcome
    findings: tuple[Finding, ...] = ()
    first_divergence: Divergence | None = None
    causes: tuple[Cause, ...] = ()
    suspects: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()


class PlatformResult(Judgement):
    """A platform's result in a round: judgements, numbers and records."""

    records: tuple[str, ...] = ()
    accuracy: float | None = None
    chance: float | None = None
    """Accuracy of the most frequent label as the only answer."""
    best_accuracy: float | None = None
    """Maximum achievable accuracy, where the dataset defines it."""
    samples_per_second: float | None = None
    unavailable: str = ""
    """Reason of a missing record; such a platform is `inconclusive`, never `drift`."""
    absent: dict[str, str] = {}
    """Reasons of missing records by workload."""
    is_misconfigured: bool = False
    """Whether the record is missing because the platform is not set up to train: a person has to fix it."""
    workloads: dict[str, Outcome] = {}
    """The verdict of each workload."""
    optional: bool = False
    """Whether the round can pass without this platform's record."""
    timings: dict[str, float] = {}
    machine_seconds: float | None = None
    """Time of all of the platform's trainings of the round, reruns and experiments too; `None`: not measured."""
    waited_seconds: float | None = None
    """Time for which its `machines` were on for the round and did not train; `None`: not measured."""
    record_bytes: int | None = None
    """Size of their records."""
    improved: tuple[str, ...] = ()
    """Metrics that are permanently better than their reference: accept a new baseline."""
    called: tuple[str, ...] = ()
    """Workloads with a loss that the nights call tonight: a second one alerts beside the first."""
    unjudged_nights: int = 0
    """Number of consecutive unjudged nights, once the suite's limit is reached."""


class RoundVerdict(Model):
    """Result of a round, as in `run --json` and `round.json`."""

    schema_version: Literal[1] = 1
    round: str
    suite: str = ""
    verdict: Outcome
    platforms: dict[str, PlatformResult] = Field(default_factory=dict)
    quorum_failed: bool = False
    """Whether fewer platforms left a record than the suite's quorum."""
    report: str = ""
    """The link of the report, or its path."""
    report_note: str = ""
    """Validity of the link, or a note that it is only a path."""
    flow_run: str = ""
    timings: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    proven: str = ""
    """Time and result of the judge's last canary."""

    @property
    def exit_code(self) -> ExitCode:
        """Return the verdict's exit code; 2 if only unprepared platforms are missing."""
        missing = [result for result in self.platforms.values() if result.verdict == "inconclusive"]
        is_usage = self.verdict == "inconclusive" and all(result.is_misconfigured for result in missing)
        return ExitCode.USAGE if is_usage and missing else exit_code(self.verdict)


def worst(outcomes: list[Outcome]) -> Outcome:
    """Return the worst outcome; `inconclusive` if empty."""
    return max(outcomes, key=_SEVERITY.__getitem__, default="inconclusive")


def severity(outcome: Outcome) -> int:
    """Return how bad an outcome is: 0 for a pass."""
    return _SEVERITY[outcome]


def exit_code(outcome: Outcome) -> ExitCode:
    """Return the exit code for an outcome."""
    return _EXIT[outcome]
