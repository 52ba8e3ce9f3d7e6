"""Check → Finding → Verdict, and the Cause that explains a drift."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plumbline.errors import ExitCode
from plumbline.schema.base import Model

__all__ = [
    "Cause",
    "CauseCode",
    "Divergence",
    "Finding",
    "Judgement",
    "Outcome",
    "PlatformResult",
    "RoundVerdict",
    "Stage",
    "exit_code",
    "worst",
]

Outcome = Literal["pass", "drift", "inconclusive", "invalid"]
Sure = Literal["confirmed", "likely", "unattributed"]
CauseCode = Literal[
    "data.content", "data.labels", "data.order", "tokenization", "model.architecture", "weights.init", "rng",
    "precision", "operator", "kernel", "loss", "gradient", "optimizer", "schedule", "evaluation", "nondeterminism",
    "loader", "transfer", "throttling", "slow-device", "contention", "software", "environment", "unattributed",
]  # fmt: skip
Stage = Literal[
    "spec", "data", "batch", "architecture", "weights", "rng", "forward", "loss", "gradient",
    "optimizer", "schedule", "evaluation", "learn", "speed",
]  # fmt: skip

_SEVERITY: dict[Outcome, int] = {"pass": 0, "inconclusive": 1, "drift": 2, "invalid": 3}
_EXIT: dict[Outcome, ExitCode] = {
    "pass": ExitCode.PASS,
    "drift": ExitCode.DRIFT,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "invalid": ExitCode.INVALID,
}


class Divergence(Model):
    """Where two runs first stopped being the same."""

    stage: Stage
    step: int | None = None
    at: str = ""
    """The module, the parameter, the batch field, or `shard KEY row N`."""
    row: int | None = None
    """The row of the dataset, counted as the manifest counts."""


class Finding(Model):
    """The outcome of one check, with its numbers at full precision."""

    check: str
    """Dotted, part first: `probe.forward`, `data.rows`, `learn.accuracy`, `speed.throughput`."""
    outcome: Outcome
    metric: str = ""
    observed: float | str | None = None
    limit: float | str | None = None
    unit: str = ""
    against: str = ""
    """`platform NAME` or `baseline RECORD`."""
    detail: str = ""


class Cause(Model):
    """Why it drifted, and how sure that is."""

    code: CauseCode
    sure: Sure
    why: str
    evidence: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    """Differences of the fingerprints that could explain this code."""
    tried: tuple[str, ...] = ()
    """The experiments that were run, and what each one gave."""


class Judgement(Model):
    """One candidate judged against one reference: what `compare` prints."""

    verdict: Outcome
    findings: tuple[Finding, ...] = ()
    first_divergence: Divergence | None = None
    causes: tuple[Cause, ...] = ()
    suspects: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """`kernel` where the runs differ by rounding alone, and other things worth saying."""


class PlatformResult(Judgement):
    """A platform's entry in a round: its judgements summed, its numbers, and where its records lie."""

    records: tuple[str, ...] = ()
    accuracy: float | None = None
    samples_per_second: float | None = None
    unavailable: str = ""
    """Why there is no record; such a platform is `inconclusive`, never `drift`."""
    timings: dict[str, float] = {}


class RoundVerdict(Model):
    """A round's outcome: `run --json`, and `round.json` in the central store."""

    schema_version: Literal[1] = 1
    round: str
    suite: str = ""
    verdict: Outcome
    platforms: dict[str, PlatformResult] = Field(default_factory=dict)
    report: str = ""
    flow_run: str = ""
    timings: dict[str, float] = {}
    notes: tuple[str, ...] = ()


def worst(outcomes: list[Outcome]) -> Outcome:
    """The sum of several outcomes; of none, `inconclusive`: nothing checked is no pass."""
    return max(outcomes, key=_SEVERITY.__getitem__, default="inconclusive")


def exit_code(outcome: Outcome) -> ExitCode:
    """What a command that ends with this outcome leaves behind."""
    return _EXIT[outcome]
