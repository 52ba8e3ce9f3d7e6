"""The Suite: one TOML file, written by a person, that says what is trained where and what counts as drift."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from plumbline.digest import digest_file
from plumbline.errors import ConfigurationError
from plumbline.schema.base import Model, Name, first_problem
from plumbline.schema.expected import Expected
from plumbline.schema.manifest import Task
from plumbline.schema.spec import LearnSpec, OptimizerSpec, ProbeSpec, ScheduleSpec, SpeedSpec
from plumbline.schema.suggestions import did_you_mean
from plumbline.schema.suite_file import read_toml
from plumbline.schema.suite_values import StoreUrl, WebUrl, is_time_zone

__all__ = [
    "Alert",
    "AlertEvent",
    "DatasetSource",
    "Dispatch",
    "Gates",
    "LocalPlatform",
    "Platform",
    "Schedule",
    "StoreUrl",
    "Suite",
    "Workload",
    "parse_suite",
    "read_suite",
]

_HINT = "docs/SUITE.md lists every key"
_IS_SHA256 = re.compile(r"[0-9a-f]{64}")


class Workload(Model):
    """What is trained: it becomes a RunSpec once its dataset and weights are built."""

    task: Task = "sequence-classification"
    model: str
    """tiny, mini, small, base or large; or the folder of a checkpoint in the Hugging Face format."""
    data: Name
    seed: int = Field(ge=0, lt=2**63)
    batch_size: int = Field(ge=1, le=65536)
    sequence_length: int = Field(default=128, ge=8, le=65536)
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    probe: ProbeSpec | None = None
    speed: SpeedSpec | None = None
    learn: LearnSpec | None = None

    @model_validator(mode="after")
    def _has_a_part(self) -> Self:
        if not (self.probe or self.speed or self.learn):
            raise ValueError("no part: add [workloads.NAME.probe], .speed or .learn")
        return self


class Platform(Model):
    """Where training runs, and the stores of its own cloud."""

    work_pool: Name
    data: StoreUrl
    outbox: StoreUrl
    accelerator: str = ""
    """The device expected, `cpu` or the GPU's whole name; empty: any. A record of another device is invalid."""
    gpus: int = Field(default=1, ge=1, le=64)
    """Processes on the machine, one for each GPU."""
    lock: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """SHA-256 of the lock file that the environment was built from; in a file also its path. Empty: any."""
    optional: bool = False
    """Whether a round passes without this platform's record."""
    throughput_drop: float | None = Field(default=None, gt=0, lt=1)
    """Overrides the gates' limit."""
    start_seconds: float = Field(default=900, gt=0)
    """Deadline from dispatch until training runs."""
    run_seconds: float = Field(default=7200, gt=0)
    """Deadline from then until the record is there."""
    retries: int = Field(default=1, ge=0, le=10)
    """How often an infrastructure failure is tried again."""

    @property
    def expected(self) -> Expected:
        """The machine that this platform's trainings must run on."""
        return Expected(accelerator=self.accelerator, gpus=self.gpus, lock_sha256=self.lock)


class Gates(Model):
    """What counts as drift."""

    accuracy_margin: float = Field(default=0.02, gt=0, lt=1)
    """Absolute."""
    throughput_drop: float = Field(default=0.05, gt=0, lt=1)
    """Relative to the platform's own baseline, and confirmed by an independent rerun."""
    accuracy_standard_errors: float = Field(default=2.326, ge=0, le=10)
    """By how many standard errors of the evaluated rows a gap has to exceed the margin before it is drift."""
    throughput_standard_errors: float = Field(default=3.0, ge=0, le=10)
    """By how many standard errors of both median steps a drop has to stand out before a rerun is asked for."""
    false_alarms_a_year: float = Field(default=1.0, gt=0)
    """Over all platforms, workloads and metrics together."""
    unjudged_nights: int = Field(default=7, ge=1)
    """As many nights in a row without a judgement of a platform are alerted as `unjudged`."""


class Schedule(Model):
    """When the nightly round runs."""

    cron: str
    timezone: str = "UTC"
    grace_seconds: float = Field(default=3600, gt=0)
    """How late a round may start before `missed` is alerted."""


AlertEvent = Literal["drift", "invalid", "unavailable", "recovered", "missed", "unjudged", "improved"]


class Alert(Model):
    """Who is told of what: through a Prefect block, so that no secret stands in a suite."""

    on: tuple[AlertEvent, ...] = Field(min_length=1)
    block: str = Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")
    """`BLOCK-TYPE/NAME`, as Prefect writes it."""
    address_from: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")
    """The environment variable from which `plumbline deploy` takes the address for the block, to make it."""
    reminder_hours: float = Field(default=24 * 7, gt=0)


class DatasetSource(Model):
    """How `plumbline data build` makes a dataset: from the seeded grammar, or from a user's own rows."""

    grammar_seed: int | None = Field(default=None, ge=0)
    path: str | None = None
    """A file, a folder, a glob or a store URL of CSV, JSON, JSONL or Parquet; or the name of a Hugging Face dataset."""
    evaluation_path: str | None = None
    """The same for the rows that evaluate; without it a ready-made split, else a part of `path`."""
    config: str | None = None
    """Of a Hugging Face dataset."""
    split: str | None = None
    """The split of a Hugging Face dataset to train on; default `train`."""
    evaluation_split: str | None = None
    """Default: `validation`, else `test`, where it has labels."""
    revision: str | None = None
    """A branch, tag or commit of a Hugging Face dataset."""
    train_rows: int = Field(default=4096, ge=8)
    evaluation_rows: int = Field(default=1024, ge=8)
    rows_per_shard: int = Field(default=1024, ge=1)
    vocab_size: int = Field(default=2048, ge=64)
    lowercase: bool = True
    """Whether the tokenizer trained here lower-cases its input."""
    tokenizer: str | None = None
    """A `tokenizer.json`, or the folder of a checkpoint that holds one, to use instead of a trained one."""
    text_column: str | None = None
    """Without it the only column whose name is a usual one for texts, such as `text`; likewise `label_column`."""
    pair_column: str | None = None
    """The second text, for pairs of sentences."""
    label_column: str | None = None
    labels: tuple[str | bool | int, ...] | None = Field(default=None, min_length=2)
    """The classes in order; needed where labels are numbers other than 0 to n - 1."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.grammar_seed is None) == (self.path is None):
            raise ValueError("give either grammar_seed or path")
        if self.labels is not None and len(set(map(str, self.labels))) != len(self.labels):
            raise ValueError("labels: the same class twice")
        return self


class LocalPlatform(Model):
    """What the local stack does for one platform beyond starting its worker; for drills and demonstrations."""

    prepare: tuple[str, ...] = ()
    """A command run once the platform's data is published; `{python}`, `{data}` and `{root}` are filled in."""
    environment: dict[str, str] = {}
    """Variables of that platform's worker; `{root}` is filled in."""


class Dispatch(Model):
    """How a round treats its platforms."""

    quorum: int = Field(default=2, ge=1)
    """Fewer platforms with a record than this make the round `inconclusive`."""
    overlap: Literal["queue", "refuse"] = "queue"
    """What a second round of the same suite does while one runs."""
    experiments: int = Field(default=6, ge=0, le=50)
    """The most counterfactual reruns for one platform in one round."""


def _suggested(what: str, word: str, choices: Iterable[str]) -> str:
    suggestion = did_you_mean(word, choices)
    return f"{what}; {suggestion}" if suggestion else what


class Suite(Model):
    """One suite file."""

    name: Name
    store: StoreUrl
    report_url: WebUrl | Literal[""] = ""
    """Where a static site or a proxy serves the central store: alerts link to the report there."""
    reference: Name
    workloads: dict[Name, Workload] = Field(min_length=1)
    platforms: dict[Name, Platform] = Field(min_length=1)
    datasets: dict[Name, DatasetSource] = {}
    gates: Gates = Gates()
    dispatch: Dispatch = Dispatch()
    schedule: Schedule | None = None
    alerts: tuple[Alert, ...] = ()
    local: dict[Name, LocalPlatform] = {}

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.reference not in self.platforms:
            what = f"reference names {self.reference!r}, which is no platform of this suite"
            raise ValueError(_suggested(what, self.reference, self.platforms))
        for name in self.local:
            if name not in self.platforms:
                raise ValueError(_suggested(f"local.{name} is no platform of this suite", name, self.platforms))
        return self

    @model_validator(mode="after")
    def _trainings_differ_in_name(self) -> Self:
        # A training is found again by its name, `PLATFORM-WORKLOAD`: of two with one name a round would lose one.
        known: dict[str, str] = {}
        for name, words in self._trainings():
            if name in known:
                raise ValueError(f"{known[name]} and {words} would both be called {name!r}: rename one of them")
            known[name] = words
        return self

    def _trainings(self) -> Iterator[tuple[str, str]]:
        """What a round may train, by its name there; experiments have a digest in theirs."""
        for platform in self.platforms:
            for workload, content in self.workloads.items():
                words = f"workload {workload!r} on platform {platform!r}"
                yield f"{platform}-{workload}", words
                if content.speed is not None:
                    yield f"{platform}-{workload}-rerun", f"the rerun of {words}"
                    for number in range(2, 5):
                        yield f"{platform}-{workload}-rerun-{number}", f"rerun {number} of {words}"


def read_suite(path: Path) -> Suite:
    """The suite in `path`; `ConfigurationError` names the file, the key and the mend."""
    suite = parse_suite(_with_locks(read_toml(path), path), where=str(path))
    # Asked of the file alone: a suite that was read stays good on a machine that knows fewer time zones.
    if suite.schedule is not None and not is_time_zone(suite.schedule.timezone):
        reason = f"{suite.schedule.timezone!r} is no time zone: give an IANA name, such as Europe/Berlin"
        raise ConfigurationError(reason, where=str(path), key="schedule.timezone", hint=_HINT)
    return suite


def _with_locks(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return `content` with the digest of each lock file in place of its path, from the suite's folder or from here."""
    platforms = content.get("platforms")
    if not isinstance(platforms, dict):
        return content
    changed = {name: _with_lock(name, platform, path) for name, platform in platforms.items()}
    return {**content, "platforms": changed}


def _with_lock(name: str, platform: Any, path: Path) -> Any:
    lock = platform.get("lock") if isinstance(platform, dict) else None
    if not isinstance(lock, str) or not lock or _IS_SHA256.fullmatch(lock):
        return platform
    for file in (path.parent / lock, Path(lock)):
        try:
            return {**platform, "lock": digest_file(file)}
        except OSError:
            continue
    hint = "name a lock file, or its SHA-256"
    raise ConfigurationError(f"cannot read {lock!r}", where=str(path), key=f"platforms.{name}.lock", hint=hint)


def parse_suite(content: Mapping[str, Any], *, where: str) -> Suite:
    """The suite of values with tuples for lists; `ConfigurationError` names `where`, the key and the mend."""
    try:
        # Strict, for TOML and JSON have types of their own: `seed = true` and `steps = "10"` are slips.
        suite = Suite.model_validate(content, strict=True)
    except ValidationError as error:
        key, reason = first_problem(error, Suite)
        raise ConfigurationError(reason, where=where, key=key, hint=_HINT) from error
    for key, reason in _misfits(suite):
        raise ConfigurationError(reason, where=where, key=key, hint=_HINT)
    return suite


def _misfits(suite: Suite) -> Iterator[tuple[str, str]]:
    """Key and reason of what cannot be meant though each value is one by itself.

    Looked at where a person's words are read and not in the models: so the key that is named is the one to mend.
    """
    for name, workload in suite.workloads.items():
        micro = workload.optimizer.accumulation_steps
        if workload.batch_size % micro:
            reason = f"{micro} does not divide batch_size, {workload.batch_size}"
            yield f"workloads.{name}.optimizer.accumulation_steps", reason
        for step in workload.probe.tap_steps if workload.probe else ():
            if workload.probe and not 0 <= step < workload.probe.steps:
                reason = f"{step} is no step of the probe: its steps are 0 to {workload.probe.steps - 1}"
                yield f"workloads.{name}.probe.tap_steps", reason
