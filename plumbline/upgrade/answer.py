"""Trials of an upgrade (trainings with some changes), and the resulting answer.

A trial asks: with just these changes applied to your current environment, does this part of the training stay the same?
Questions and results are JSON, so a trial may run here, or on any worker that holds the current environment. The answer
has the effects on training, the packages that cause them, and the evidence.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from pydantic import Field

from plumbline.environments.changes import Failure, PackageChange
from plumbline.environments.locks.model import Pin
from plumbline.report.charts import Chart
from plumbline.report.pairs import between, pairs_chart
from plumbline.report.sentences import some_of, spoken
from plumbline.schema.base import Model, Name
from plumbline.schema.errors import ExitCode
from plumbline.schema.verdict import Cause, Divergence, Finding, Judgement, Outcome, exit_code

Effect = Literal["cannot-install", "cannot-train", "inputs", "numerics", "speed", "memory"]
Others = Literal["pass", "other culprits", "not judged", "none"]
UNTIMED = "throughput and memory: not tried, for no training opens a file of the changes"
_MANY = 10_000

TrialPart = Literal["environment", "releases", "reference", "inputs", "numerics", "speed"]
"""`environment`: can it be built? `releases`: which releases lie between both pins of a change? `reference`: the
current environment alone. The others compare a part with it."""

TrialOutcome = Literal["same", "drift", "cannot-install", "cannot-train", "lost"]
"""`lost`: the machine failed, and nothing is known of the changes."""

Memory = Literal["host memory", "device memory"]
Measure = Literal["throughput", "host memory", "device memory"]
"""What a pair of trainings compares."""


class Trial(Model):
    """One trial: what to train, and with which package changes."""

    name: Name
    changes: tuple[PackageChange, ...] = Field(default=(), max_length=_MANY)
    part: TrialPart
    steps: int | None = Field(default=None, ge=1)
    """Train only the first steps of the probe: those that showed the drift. `None`: the whole part."""
    learn: bool = True
    """Of `numerics`: whether the learn part is trained."""
    probe: bool = True
    """Of `numerics`: whether the probe is trained."""
    pairs: int = Field(default=3, ge=1, le=100)
    """Of `speed`: how many pairs of fresh processes."""
    pairs_before: int = Field(default=0, ge=0, le=100)
    """Of `speed`: how many pairs were trained before, so that the order goes on alternating."""


class Package(Model):
    """Metadata of one changed package: links and dependencies."""

    package: str
    links: dict[str, str] = Field(default={}, max_length=200)
    needs: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """Other changes without which this one breaks a requirement: they are tried together."""


class TrialResult(Model):
    """Result of one trial."""

    trial: Name
    outcome: TrialOutcome
    worker: str = ""
    judgement: Judgement | None = None
    """Of `inputs` and `numerics`."""
    has_equal_bits: bool = False
    """Of `numerics`: every bit of the probe is equal."""
    log_ratios: tuple[float, ...] = Field(default=(), max_length=1000)
    """Of `speed`: ln(changed / current) of the throughput, one value a pair."""
    memory_ratios: dict[Memory, tuple[float, ...]] = {}
    """Of `speed`: ln(changed / current) of the peak memory, one value a pair; empty where it was not measured."""
    failures: tuple[Failure, ...] = Field(default=(), max_length=_MANY)
    opened: tuple[str, ...] | None = Field(default=None, max_length=_MANY)
    """Packages of which the trainer opened a file, under these changes; `None` where it did not run."""
    packages: tuple[Package, ...] = Field(default=(), max_length=_MANY)
    """Of `environment`."""
    releases: tuple[Pin, ...] = Field(default=(), max_length=_MANY)
    """Of `releases`: from the current pin to the candidate's, both left out."""
    seconds: float = Field(default=0.0, ge=0)

    def ratios(self, measure: Measure) -> tuple[float, ...]:
        """Return each pair's log ratio; negative means worse."""
        if measure == "throughput":
            return self.log_ratios
        return tuple(-ratio for ratio in self.memory_ratios.get(measure, ()))


class Trials(Protocol):
    """Interface that runs trials."""

    def run(self, trial: Trial) -> TrialResult:
        """Run a trial, and return its result."""


class ReleaseRange(Model):
    """Two releases between which an effect first appears."""

    without: str = Field(max_length=200)
    """The later release without the effect; possibly the current one."""
    with_effect: str = Field(max_length=200)
    """The earlier release with the effect; possibly the candidate's."""
    unknown: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """Releases between both that could not be tried."""
    num_tried: int = Field(default=0, ge=0)


class Culprit(Model):
    """Package changes that cause one effect, alone or only together."""

    effect: Effect
    changes: tuple[PackageChange, ...] = Field(max_length=_MANY)
    companions: tuple[PackageChange, ...] = Field(default=(), max_length=_MANY)
    """Changes that had to be applied with them, because one requires the other."""
    sure: Literal["confirmed", "likely"]
    """`confirmed`: applied alone the effect is there, and all other changes without them do not have it."""
    is_minimal: bool = True
    """False where a smaller set could not be judged."""
    others: Others = "pass"
    """All other changes without these; `none` where nothing else changes."""
    sentence: str
    judgement: Judgement | None = None
    """Of these changes alone."""
    drop: float | None = None
    """Of `speed`: the share of the throughput that is lost, as the pairs that decided measured it: rather too much. Of
    `memory`: the share of the new peak that is new."""
    least_drop: float | None = None
    """Of `speed` and `memory`: the lower end of its interval."""
    failures: tuple[Failure, ...] = Field(default=(), max_length=_MANY)
    links: dict[str, str] = Field(default={}, max_length=1000)
    releases: ReleaseRange | None = None
    """Of a single change: where its effect appears, if that was asked for."""


class Speed(Model):
    """Result of comparing throughput in pairs."""

    outcome: Literal["slower", "as fast", "undecided"]
    drop: float
    low: float
    high: float
    num_pairs: int
    pairs: tuple[float, ...] = Field(default=(), max_length=_MANY)
    """Share of the throughput that each pair lost."""

    def __str__(self) -> str:
        return f"throughput: {self.outcome} ({between(self.low, self.high)}, {self.num_pairs} pairs)"


class MemoryUse(Model):
    """Result of comparing peak memory in pairs."""

    kind: Memory
    outcome: Literal["more", "as much", "undecided"]
    growth: float
    low: float
    high: float
    num_pairs: int
    pairs: tuple[float, ...] = Field(default=(), max_length=_MANY)
    """Growth in each pair."""

    def __str__(self) -> str:
        span = between(self.low, self.high, "more", "less")
        return f"peak {self.kind}: {self.outcome} ({span}, {self.num_pairs} pairs)"


class TrialLine(Model):
    """Report row on one trial."""

    name: str
    part: str
    changes: tuple[str, ...] = Field(max_length=_MANY)
    outcome: str
    measured: str = ""
    """What a trial of speed measured; its pairs decide only together with those of other trials."""
    seconds: float
    worker: str = ""


class UpgradeAnswer(Model):
    """Answer on one candidate on one machine.

    `plumbline upgrade --json` prints it, and a worker sends it to the flow.
    """

    schema_version: Literal[1] = 1
    verdict: Outcome
    current: str = ""
    """The current lock, as it was named."""
    candidate: str = ""
    candidate_sha256: str = ""
    image: str = ""
    """The candidate image. Its packages cannot be exchanged one by one: nothing is bisected, and no package accused."""
    changes: tuple[PackageChange, ...] = Field(default=(), max_length=_MANY)
    not_opened: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """Changed packages of which no training opened a file."""
    not_from_index: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """Changed packages that no Python index serves: they were not tried."""
    culprits: tuple[Culprit, ...] = Field(default=(), max_length=_MANY)
    constraints: tuple[str, ...] = Field(default=(), max_length=_MANY)
    """Lines of a constraints file that keep the culprits out."""
    findings: tuple[Finding, ...] = Field(default=(), max_length=_MANY)
    first_divergence: Divergence | None = None
    causes: tuple[Cause, ...] = Field(default=(), max_length=_MANY)
    speed: Speed | None = None
    memory: tuple[MemoryUse, ...] = ()
    """Peaks of memory of the same pairs; empty where they were not measured."""
    is_flaky: bool = False
    """The candidate gave different answers to the same question."""
    notes: tuple[str, ...] = Field(default=(), max_length=_MANY)
    trials: tuple[TrialLine, ...] = Field(default=(), max_length=_MANY)
    seconds: float = 0.0

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code that fits the answer.

        A lock that cannot be installed is wrong input (2); otherwise the code is the verdict's.
        """
        if any(culprit.effect == "cannot-install" for culprit in self.culprits):
            return ExitCode.USAGE
        return exit_code(self.verdict)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Format the answer as sentences, culprits first."""
        if self.culprits:
            return tuple(culprit.sentence for culprit in self.culprits)
        if self.verdict == "pass" and self.changes and not self.image:
            count = len(self.changes)
            same = f"training is the same with {self.changes[0] if count == 1 else f'all {count} changes'}"
            return ("; ".join((same, *(note for note in self.notes if note == UNTIMED))),)
        return self.notes or (f"the verdict is {self.verdict}",)

    @property
    def headline(self) -> str:
        """Return the answer's first clause: what changes training, or that nothing does."""
        if len(self.culprits) > 1:
            names = [change.package for culprit in self.culprits for change in culprit.changes]
            return f"{some_of(names)} change training"
        return self.sentences[0].partition("; ")[0].partition(" (hint: ")[0]

    @property
    def next_step(self) -> str:
        """Return what to do now."""
        if self.exit_code == ExitCode.USAGE:
            return "change the candidate lock: a package in it cannot be installed"
        if self.verdict == "pass":
            return "use the candidate: the next night is judged against the accepted baselines as before"
        if self.verdict != "drift":
            is_undecided = any(part.outcome == "undecided" for part in self.measured)
            quiet = " on a machine without other load" if is_undecided else ""
            return f"run the upgrade again{quiet}: this answer is no pass"
        keep = "keep the versions below, and upgrade the rest" if self.constraints else "keep the current lock"
        return f"{keep}; if the change is intended, upgrade and accept a new baseline (`plumbline baseline accept`)"

    @property
    def measured(self) -> tuple[Speed | MemoryUse, ...]:
        """Return what was compared in pairs."""
        return (*([self.speed] if self.speed is not None else []), *self.memory)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Return a chart of the pairs of each comparison."""
        return tuple(
            pairs_chart(
                str(part),
                part.pairs,
                part.low,
                part.high,
                ("slower", "faster") if part is self.speed else ("more", "less"),
            )
            for part in self.measured
            if part.pairs
        )

    @property
    def further_notes(self) -> tuple[str, ...]:
        """Return the notes that no sentence contains."""
        said = "; ".join(self.sentences)
        return tuple(note for note in self.notes if note not in said)

    def document(self) -> dict[str, Any]:
        """Return the answer as a JSON document, with exit code and sentences."""
        return {**spoken(self.to_json()), "sentences": list(self.sentences), "exit_code": int(self.exit_code)}
