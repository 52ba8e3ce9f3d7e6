"""Suite: a TOML file of workloads, platforms, gates, stores and alerts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, ValidationError, field_validator, model_validator
from typing_extensions import Self

from plumbline.schema.alert_event import AlertEvent
from plumbline.schema.base import Model, Name, first_problem
from plumbline.schema.command import CommandWorkload
from plumbline.schema.digest import digest_lock
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.fingerprint import Expected
from plumbline.schema.spec import LearnSpec, OptimizerSpec, ProbeSpec, ScheduleSpec, SpeedSpec
from plumbline.schema.store_url import relation
from plumbline.schema.suite_file import (
    LockUrl,
    MachineGroupUrl,
    StoreUrl,
    WebUrl,
    api_key_variable,
    check_job_variables,
    did_you_mean,
    is_time_zone,
    read_toml,
)
from plumbline.schema.task import Task, has_row_labels

_HINT = "docs/SUITE.md lists every key"
_LEAST_BLOCKS = 5
M = TypeVar("M", bound=Model)
_CRON_RANGES = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_IS_SHA256 = re.compile(r"[0-9a-f]{64}")


_RATES = {"tiny": 1e-3, "mini": 1e-3, "small": 5e-4, "medium": 5e-4, "base": 1e-4, "large": 1e-4}
"""Learning rates of training from scratch: of BERT-base and -large in Devlin et al. 2019 (arXiv:1810.04805, A.2), of
ELECTRA-small for its width in Clark et al. 2020 (arXiv:2003.10555, A). Up to 256 columns measured on the generated
reviews: 81% after 120 steps."""
FINE_TUNING_RATE = 5e-5
"""The highest of those for fine-tuning in Devlin et al. 2019, A.3."""
_WARM_UP = 10
"""Checkpoints and models of 768 columns warm up for a tenth of `learn`, as in `run_classifier.py` of
google-research/bert."""


class Workload(Model):
    """Training settings of one workload, from which a RunSpec is made."""

    task: Task = "sequence-classification"
    """What the model learns."""
    model: str
    """By layers and width `tiny` (2, 128), `mini` (4, 256), `small` (4, 512), `medium` (8, 512), `base` (12, 768),
    `large` (24, 1024); the folder of a checkpoint in the Hugging Face format (BERT, DistilBERT, RoBERTa or ModernBERT;
    with `causal-lm` GPT-2, also for the named sizes); or a Hub model `NAME@REVISION`."""
    data: Name
    """The dataset, published under every platform's data URL."""
    seed: int = Field(ge=0, lt=2**63)
    """Of the initial weights, the order of rows and portable dropout."""
    batch_size: int = Field(ge=1, le=65536)
    """Rows in one step, over all devices and micro-batches."""
    sequence_length: int = Field(default=128, ge=8, le=65536)
    """Tokens of a row; longer texts are cut."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """AdamW's settings."""
    schedule: ScheduleSpec = ScheduleSpec()
    """The learning rate's."""
    probe: ProbeSpec | None = None
    """The strict part: short, full evidence."""
    speed: SpeedSpec | None = None
    """The fast part: the team's production settings."""
    learn: LearnSpec | None = None
    """The long part: to an evaluated accuracy."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_rate_of_its_size(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("model"), str):
            return values
        rate, given = _RATES.get(values["model"], FINE_TUNING_RATE), dict(values)
        chosen, planned, learn = (values.get(key, {}) for key in ("optimizer", "schedule", "learn"))
        if isinstance(chosen, dict):
            given["optimizer"] = {"learning_rate": rate, **chosen}
        steps = learn.get("steps", LearnSpec().steps) if isinstance(learn, dict) and "learn" in values else 0
        if isinstance(planned, dict) and rate < _RATES["medium"] and isinstance(steps, int) and steps > 2 * _WARM_UP:
            given["schedule"] = {"warmup_steps": steps // _WARM_UP, **planned}
        return given

    @model_validator(mode="after")
    def _has_a_part(self) -> Self:
        if not (self.probe or self.speed or self.learn):
            raise ValueError("no part: add [workloads.NAME.probe], .speed or .learn")
        return self


def _kind_of_workload(workload: Any) -> str:
    """Return the kind of a workload: only a team's own training has a command."""
    has_command = "command" in workload if isinstance(workload, Mapping) else isinstance(workload, CommandWorkload)
    return "kind:command" if has_command else "kind:trained"


AnyWorkload = Annotated[
    Annotated[Workload, Tag("kind:trained")] | Annotated[CommandWorkload, Tag("kind:command")],
    Discriminator(_kind_of_workload),
]


class Platform(Model):
    """Platform where trainings run, with its cloud's stores."""

    work_pool: Name
    """Prefect's work pool; its concurrency limit keeps it at one training per device. If its base job template has
    the variable `image`, an upgrade to a container image can train there."""
    api: WebUrl | Literal[""] = ""
    """Address of the Prefect API that this platform's workers poll, such as `https://prefect-aws.example.org/api`;
    empty for the controller's own. The controller's variable `PLUMBLINE_API_KEY_NAME` (the platform's name in capitals,
    `_` for other characters) has its key, or its login as `USER:PASSWORD`; platforms of one such variable need the same
    `api`."""
    data: StoreUrl
    """Location of this platform's datasets and weights."""
    outbox: StoreUrl
    """Location to which this platform writes its records; not in, or around, a different outbox or the `store`."""
    accelerator: str = ""
    """The device expected: `cpu`, the GPU's whole name as its driver gives it, or a family of
    `plumbline/schema/machines.toml` (`A10` accepts `NVIDIA A10` and its vGPU profile `NVIDIA A10-24Q`, never `NVIDIA
    A10G`); empty for any. A record of a different device is `invalid`."""
    gpus: int = Field(default=1, ge=1, le=64)
    """Processes on each machine, one for each GPU: the number goes to the pool as the job variable `gpus`, to torchrun
    and to the doctor. A record of a different number is `invalid`."""
    nodes: int = Field(default=1, ge=1, le=64)
    """Machines of one training, for a pool whose base job template has the variable `nodes`
    (`infra/kubernetes/gpu-job-template.json`): torchrun starts `gpus` processes on each."""
    lock: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """The lock file that the environment was built from (`PLUMBLINE_LOCK` on the worker names it); a path is relative
    to the suite or to the working folder; empty for any."""
    python: str = Field(default="", max_length=4096, pattern=r"^([/~].*)?$")
    """The interpreter of the trainings on the worker, or its environment's folder: absolute, or below `~`. Empty: the
    worker's own. Plumbline and Prefect need not be in that environment."""
    workloads: tuple[Name, ...] | None = Field(default=None, min_length=1)
    """The workloads that train here; without the key all. The reference trains all of them."""
    queue: Name | Literal[""] = ""
    """Work queue of the pool, for a pool that several platforms share; empty: its default queue. A worker that starts
    with `--work-queue` serves that one alone."""
    job_variables: dict[str, Any] = {}
    """Values for variables of the pool's base job template, such as `image`, `memory` or `env`, for every run on this
    platform. Set no secrets here, and use the key `gpus` for the number of GPUs. `plumbline doctor` reports a name that
    the template does not have."""
    concurrency: int = Field(default=1, ge=1, le=256)
    """Maximum number of trainings that run on this platform at the same time: the number of devices of the pool.
    `plumbline deploy` creates a new pool with this limit. In a process pool start one worker for each device, with
    `--limit 1` and its own `CUDA_VISIBLE_DEVICES`. Trainings on one machine slow each other down."""
    machines: MachineGroupUrl | Literal[""] = ""
    """Group of virtual machines that is up for a round alone, `concurrency` of them:
    `aws://REGION/AUTO-SCALING-GROUP`, `azure://SUBSCRIPTION/RESOURCE-GROUP/SCALE-SET` or
    `gcp://PROJECT/ZONE/INSTANCE-GROUP`. Empty: they are always up, or the pool brings them."""
    optional: bool = False
    """Whether a round may pass without this platform's record; its drift counts all the same."""
    throughput_drop: float | None = Field(default=None, gt=0, lt=1)
    """This platform's own limit, instead of the gates'."""
    start_seconds: float = Field(default=900, gt=0)
    """Maximum time from dispatch to the start of the training; after that, the platform is `unavailable`."""
    run_seconds: float = Field(default=7200, gt=0)
    """Maximum time from the start of the training to its record."""
    retries: int = Field(default=1, ge=0, le=10)
    """Maximum number of retries after a failure of infrastructure."""
    price_per_hour: float | None = Field(default=None, ge=0)
    """Price of one machine in USD, for `plumbline store cost`; without the key that of the cheapest machine with this
    `accelerator` in the cloud of `outbox`, from `plumbline/schema/machines.toml`."""

    @field_validator("job_variables")
    @classmethod
    def _leaves_the_products_variables(cls, variables: dict[str, Any]) -> dict[str, Any]:
        return check_job_variables(variables)

    @property
    def expected(self) -> Expected:
        """Return the machine that this platform's trainings expect."""
        return Expected(accelerator=self.accelerator, gpus=self.gpus, nodes=self.nodes, lock_sha256=self.lock)


class Gates(Model):
    """Limits that define drift."""

    accuracy_margin: float = Field(default=0.02, gt=0, lt=1)
    """Maximum difference of accuracies, absolute."""
    throughput_drop: float = Field(default=0.05, gt=0, lt=1)
    """Maximum loss, relative to the platform's own baseline; an independent rerun confirms it before it is drift."""
    accuracy_standard_errors: float = Field(default=2.326, ge=0, le=10)
    """Standard errors of the evaluated rows by which a gap has to exceed the margin before it is drift."""
    throughput_standard_errors: float = Field(default=3.0, ge=0, le=10)
    """Minimum drop, as the mean of a slow run and its rerun, in standard errors of all median steps."""
    false_alarms_a_year: float = Field(default=1.0, gt=0)
    """False alarms of the history that are tolerated in a year, over all platforms, workloads and metrics together."""
    questions_a_year: float = Field(default=60.0, ge=1)
    """Requests for reruns in a year that noise alone may cause, over all of them; they cost runs, and send no
    alert."""
    open_nights: int = Field(default=7, ge=1, le=365)
    """Number of nights after which a loss that no experiment has answered is drift without a named cause, as soon as
    these nights show it; until then it is `inconclusive`."""
    unjudged_nights: int = Field(default=7, ge=1)
    """Number of consecutive days with rounds, none of them with a judgement (inconclusive or without a baseline),
    before the alert `unjudged`."""


class Schedule(Model):
    """Schedule of the nightly round."""

    cron: str
    """Five fields: minute, hour, day, month, weekday. Prefect computes the start times."""
    timezone: str = "UTC"
    """IANA name of the time zone; daylight saving time applies."""
    grace_seconds: float = Field(default=3600, gt=0)
    """Maximum delay of a round's start before the alert `missed`."""

    @field_validator("cron")
    @classmethod
    def _has_five_fields(cls, cron: str) -> str:
        # Readers of cron disagree about a sixth field (seconds first, or last) and about names such as @daily.
        if (num_fields := len(cron.split())) != len(_CRON_RANGES):
            fields = "minute, hour, day, month and weekday, such as '0 2 * * *'"
            raise ValueError(f"{cron!r} has {num_fields} field{'s' * (num_fields != 1)} instead of five: {fields}")
        for (name, (low, high)), field in zip(_CRON_RANGES.items(), cron.split(), strict=True):
            for value in re.findall(r"(?<![/#\w])\d+", field):
                if not low <= int(value) <= high:
                    raise ValueError(f"{cron!r}: {name} {value} is not in {low} to {high}")
        return cron


class Alert(Model):
    """Recipient of alerts: a Prefect block, which keeps secrets out of the suite."""

    on: tuple[AlertEvent, ...] = Field(min_length=1)
    """The events that are sent; one or more."""
    block: str = Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")
    """The Prefect block that sends the alerts, as `BLOCK-TYPE/NAME`."""
    address_from: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")
    """The environment variable with the block's address, from which `plumbline deploy` creates or updates the block;
    empty: create the block in Prefect."""
    reminder_hours: float = Field(default=24 * 7, gt=0)
    """Hours after which a continuing drift is alerted again."""


_IMPORTED = {"train_rows": 1 << 40, "rows_per_shard": 8192, "vocab_size": 8192}
"""Defaults of a user's rows, which may be many millions."""


class DatasetSource(Model):
    """Source of a dataset: the built-in generator, or a user's rows."""

    grammar_seed: int | None = Field(default=None, ge=0)
    """Generate product reviews from the seeded grammar; the best possible accuracy on them is 92.3%."""
    path: str | None = None
    """A file, a folder, a glob or a store URL of CSV, TSV, JSON, JSONL or Parquet (also `.gz`, `.zst`); a folder or
    store URL that `save_to_disk` of the library `datasets` wrote; or a Hugging Face dataset: `NAME` or
    `NAME:CONFIG`."""
    evaluation_path: str | None = None
    """Files for evaluation, separate from those of `path`."""
    config: str | None = None
    """Configuration of a Hugging Face dataset."""
    split: str | None = None
    """Split of a Hugging Face or saved dataset to train on; without this key `train`."""
    evaluation_split: str | None = None
    """Its split to evaluate on; without this key `validation`, else `test`, where it has labels."""
    revision: str | None = None
    """Its branch, tag or commit; the manifest keeps the commit."""
    train_rows: int = Field(default=4096, ge=8)
    """Maximum; with `path` all rows by default."""
    evaluation_rows: int = Field(default=1024, ge=8)
    """Maximum; of a single file also at most a fifth of the rows."""
    rows_per_shard: int = Field(default=1024, ge=1)
    """Rows in one Parquet file; with `path` 8192 by default."""
    vocab_size: int = Field(default=2048, ge=64)
    """Maximum vocabulary of the WordPiece tokenizer trained on the rows; with `path` 8192 by default."""
    lowercase: bool = True
    """Whether that tokenizer lower-cases."""
    tokenizer: str | None = None
    """A `tokenizer.json`, the `vocab.txt` of a BERT, or a checkpoint's folder with one of them, instead of a trained
    one; without this key a dataset that a checkpoint trains on gets the checkpoint's own."""
    text_column: str | None = None
    """The column with the text; without this key the only column with a usual name, such as `text`."""
    header: bool = True
    """Whether CSV and TSV begin with the names of their columns; else the columns are named `1`, `2`, ..."""
    pair_column: str | None = None
    """The column with the second text, for pairs of sentences."""
    label_column: str | None = None
    """The column with the label; without this key the only column with a usual name, such as `label`."""
    labels: tuple[str | bool | int, ...] | None = Field(default=None, min_length=2)
    """The classes in order; needed where labels are numbers other than 0 to n - 1."""

    @model_validator(mode="before")
    @classmethod
    def _has_sizes_of_its_kind(cls, values: Any) -> Any:
        imported = isinstance(values, dict) and values.get("path") is not None
        return {**_IMPORTED, **values} if imported else values

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.grammar_seed is None) == (self.path is None):
            raise ValueError("set either grammar_seed or path")
        if self.labels is not None and len(set(map(str, self.labels))) != len(self.labels):
            raise ValueError("labels: the same class twice")
        return self


class LocalPlatform(Model):
    """Extra settings of a platform on the local stack, for demonstrations."""

    prepare: tuple[str, ...] = ()
    """A command that runs once the platform's data is published; `{python}`, `{data}` and `{root}` are filled in."""
    environment: dict[str, str] = {}
    """Variables of that platform's worker; `{root}` is filled in."""


class Dispatch(Model):
    """Dispatch settings of a round."""

    quorum: int = Field(default=2, ge=1)
    """Minimum number of platforms with a record; with fewer, the round is `inconclusive`."""
    overlap: Literal["queue", "refuse"] = "queue"
    """Whether a second round of the same suite waits for the first (`"queue"`) or is cancelled (`"refuse"`)."""
    experiments: int = Field(default=6, ge=0, le=50)
    """Maximum number of experiments for one platform in one round."""
    reruns: int = Field(default=4, ge=1, le=20)
    """Number of reruns of the speed part to confirm a change in the history, for one workload of a platform in one
    round."""
    ab_blocks: int = Field(default=6, ge=0, le=50)
    """Minimum number of blocks of the A/B that distinguishes software from machine; a suite with many series needs
    more. A block has two runs in tonight's environment and two in the baseline's, in random order, on one machine; at
    most one A/B per platform and round; `0`: no A/B."""
    ab_seconds: float = Field(default=7200.0, gt=0)
    """Maximum time of one A/B; with too few blocks, the finding says how many more show or rule out the loss."""
    max_cost: float | None = Field(default=None, gt=0)
    """Expected cost of a night in USD above which no round is dispatched: the median of the last seven nights, or what
    the deadlines allow before the first. `plumbline store cost SUITE` shows it. The cost of upgrades is not limited."""

    @model_validator(mode="after")
    def _has_enough_blocks(self) -> Self:
        if 0 < self.ab_blocks < _LEAST_BLOCKS:
            raise ValueError(f"ab_blocks: fewer than {_LEAST_BLOCKS} blocks give no result; 0 turns the A/B off")
        return self


def _suggested(problem: str, word: str, choices: Iterable[str]) -> str:
    suggestion = did_you_mean(word, choices)
    return f"{problem}; {suggestion}" if suggestion else problem


class Suite(Model):
    """Content of one suite file."""

    name: Name
    """Part of the names of rounds, deployments and reports."""
    store: StoreUrl
    """The central store, the controller's own: records, rounds, baselines, alert states."""
    report_url: WebUrl | Literal[""] = ""
    """Address at which a static site or a proxy serves the central store (its `site/`, `rounds/` and `records/`);
    alerts, Prefect and CI link there. Without it they have a presigned link that opens for a week, or for as long as
    the credentials that signed it are valid; for a folder, its path."""
    reference: Name
    """The platform that the others are compared with."""
    workloads: dict[Name, AnyWorkload] = Field(min_length=1)
    """What is trained; at least one. A workload with the key `command` is a team's own training."""
    platforms: dict[Name, Platform] = Field(min_length=1)
    """Where it is trained; at least one."""
    datasets: dict[Name, DatasetSource] = {}
    """How datasets are built; needed by `plumbline data build` and by the local stack."""
    gates: Gates = Gates()
    """What counts as drift."""
    dispatch: Dispatch = Dispatch()
    """How a round treats its platforms."""
    schedule: Schedule | None = None
    """When the nightly round runs; without it, only on demand."""
    alerts: tuple[Alert, ...] = ()
    """Recipients of alerts."""
    candidates: tuple[LockUrl, ...] = ()
    """Addresses below which a candidate lock may be that an event names by `candidate.url`: `https://HOST/PATH` or the
    URL of a store. Without them, an event sends the lock's text."""
    local: dict[Name, LocalPlatform] = {}
    """Extras of the local stack, for drills and demonstrations."""

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        if self.reference not in self.platforms:
            text = f"reference names {self.reference!r}, which is not a platform of this suite"
            raise ValueError(_suggested(text, self.reference, self.platforms))
        for name in self.local:
            if name not in self.platforms:
                raise ValueError(_suggested(f"local.{name} is not a platform of this suite", name, self.platforms))
        return self

    @model_validator(mode="after")
    def _apis_differ_in_key(self) -> Self:
        # The key of one API must never be sent to a different one.
        known: dict[str, str] = {}
        for name, platform in self.platforms.items():
            variable = api_key_variable(name)
            first = known.setdefault(variable, name) if platform.api else name
            if self.platforms[first].api != platform.api:
                text = f"platforms {first!r} and {name!r} would have one variable for the keys of two APIs, {variable}"
                raise ValueError(f"{text}: rename one of them")
        return self

    @model_validator(mode="after")
    def _trainings_differ_in_name(self) -> Self:
        # Trainings are found by name, `PLATFORM-WORKLOAD`: with duplicate names a round would lose a training.
        known: dict[str, str] = {}
        for name, description in self._trainings():
            if name in known:
                raise ValueError(
                    f"{known[name]} and {description} would have the same name {name!r}: rename one of them"
                )
            known[name] = description
        return self

    def with_absolute_urls(self, folder: Path) -> Suite:
        """Return the suite with relative `file://` URLs resolved against `folder`."""
        platforms = {
            name: platform.replace(data=_absolute(platform.data, folder), outbox=_absolute(platform.outbox, folder))
            for name, platform in self.platforms.items()
        }
        suite = self.model_copy(update={"store": _absolute(self.store, folder), "platforms": platforms})
        # Links and relative folders show only now whether two stores are one place.
        return _refuse(suite, _shared_outboxes(suite), where=self.name)

    def workloads_of(self, platform: str) -> dict[str, Workload | CommandWorkload]:
        """Return the workloads that train on a platform."""
        chosen = self.platforms[platform].workloads
        return {name: workload for name, workload in self.workloads.items() if chosen is None or name in chosen}

    def _trainings(self) -> Iterator[tuple[str, str]]:
        """Yield (name, description) of every possible training in a round."""
        for platform in self.platforms:
            for workload, content in self.workloads_of(platform).items():
                text = f"workload {workload!r} on platform {platform!r}"
                yield f"{platform}-{workload}", text
                if isinstance(content, CommandWorkload) or content.speed is not None:
                    yield f"{platform}-{workload}-rerun", f"the rerun of {text}"
                    for number in range(2, self.dispatch.reruns + 1):
                        yield f"{platform}-{workload}-rerun-{number}", f"rerun {number} of {text}"
                    yield f"{platform}-{workload}-ab", f"the A/B of {text}"


def _absolute(url: str, folder: Path) -> str:
    scheme, _, rest = url.partition("://")
    return f"file://{(folder / rest).resolve()}" if scheme == "file" else url


class Workloads(Model):
    """Part of a suite file from which RunSpecs are made."""

    workloads: dict[Name, AnyWorkload] = Field(min_length=1)
    datasets: dict[Name, DatasetSource] = {}


def read_workloads(path: Path) -> Workloads:
    """Read only the workloads and datasets of a suite file."""
    content = read_toml(path)
    for key in content.keys() - Suite.model_fields.keys():
        raise ConfigurationError(
            _suggested("unknown key", key, Suite.model_fields), where=str(path), key=key, hint=_HINT
        )
    own = {key: value for key, value in content.items() if key in Workloads.model_fields}
    workloads = _validated(Workloads, own, where=str(path))
    return _refuse(workloads, _misfits(workloads.workloads), where=str(path))


def read_suite(path: Path) -> Suite:
    """Read the suite in `path`; raise `ConfigurationError` with key and hint."""
    suite = parse_suite(_with_files(_with_locks(read_toml(path), path), path), where=str(path))
    # Checked for files only: a validated suite stays valid on a machine with fewer time zones.
    if suite.schedule is not None and not is_time_zone(suite.schedule.timezone):
        reason = f"{suite.schedule.timezone!r} is not a time zone: use an IANA name, such as Europe/Berlin"
        raise ConfigurationError(reason, where=str(path), key="schedule.timezone", hint=_HINT)
    return suite


def _with_locks(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return `content` with lock paths replaced by their digests."""
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
            return {**platform, "lock": digest_lock(file)}
        except OSError:
            continue
    hint = "name a lock file, or its SHA-256"
    raise ConfigurationError(f"cannot read {lock!r}", where=str(path), key=f"platforms.{name}.lock", hint=hint)


def _with_files(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return `content` with the files of commands by their place, as absolute paths."""
    workloads = content.get("workloads")
    if not isinstance(workloads, dict):
        return content
    changed = {name: _with_shipped(name, workload, path) for name, workload in workloads.items()}
    return {**content, "workloads": changed}


def _with_shipped(name: str, workload: Any, path: Path) -> Any:
    files = workload.get("files") if isinstance(workload, dict) and "command" in workload else None
    if not isinstance(files, (list, tuple)) or not all(isinstance(file, str) for file in files):
        return workload
    if missing := [file for file in files if not (path.parent / file).is_file()]:
        key, hint = f"workloads.{name}.files", "name files below the suite's folder"
        raise ConfigurationError(f"no such file: {missing[0]!r}", where=str(path), key=key, hint=hint)
    return {**workload, "files": {file: str((path.parent / file).absolute()) for file in files}}


def parse_suite(content: Mapping[str, Any], *, where: str) -> Suite:
    """Validate a suite's values; raise `ConfigurationError` with key and hint."""
    for key in _unprintable(content):
        raise ConfigurationError("contains a control character", where=where, key=key, hint=_HINT)
    suite = _validated(Suite, content, where=where)
    problems = chain(
        _misfits(suite.workloads), _unknown_workloads(suite), _idle_alerts(suite), _shared_outboxes(suite),
        _alone_on_a_machine(suite),
    )  # fmt: skip
    return _refuse(suite, problems, where=where)


def _unprintable(value: object, key: str = "") -> Iterator[str]:
    """Yield the keys of texts with control characters, which reach logs, terminals and file names."""
    if isinstance(value, str) and _CONTROL.search(value):
        yield key
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _unprintable(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _unprintable(inner, key)


def _shared_outboxes(suite: Suite) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for outboxes that give a worker too much access."""
    known = {"the central store": suite.store}
    for name, platform in suite.platforms.items():
        for place, url in known.items():
            if lies := relation(platform.outbox, url):
                yield f"platforms.{name}.outbox", f"{lies} {place}: give each platform an outbox of its own"
        for other, theirs in suite.platforms.items():
            lies = relation(platform.data, theirs.outbox)
            if other != name and lies and lies != "contains":
                yield f"platforms.{name}.data", f"{lies} the outbox of {other}, whose workers could replace it"
        known[f"the outbox of {name}"] = platform.outbox


def _idle_alerts(suite: Suite) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for alert events that the suite never raises."""
    has_machines = any(platform.machines for platform in suite.platforms.values())
    if not has_machines and any("left-on" in alert.on for alert in suite.alerts):
        yield "alerts", "'left-on' is about the groups of the platform key `machines`, which no platform has"


def _alone_on_a_machine(suite: Suite) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for commands on platforms of several machines, which no launcher joins."""
    for name, platform in suite.platforms.items():
        for workload, content in suite.workloads_of(name).items() if platform.nodes > 1 else ():
            if isinstance(content, CommandWorkload):
                text = f"{workload!r} has a command, which runs on one machine"
                yield f"platforms.{name}.nodes", f"{text}: name others in platforms.{name}.workloads"


def _unknown_workloads(suite: Suite) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for platforms with invalid workload choices."""
    for name, platform in suite.platforms.items():
        for workload in platform.workloads or ():
            if workload not in suite.workloads:
                text = f"{workload!r} is not a workload of this suite"
                yield f"platforms.{name}.workloads", _suggested(text, workload, suite.workloads)
    if missing := suite.workloads.keys() - suite.workloads_of(suite.reference).keys():
        text = f"{suite.reference} is the reference, and does not train {', '.join(sorted(missing))}"
        yield f"platforms.{suite.reference}.workloads", text


def _validated(kind: type[M], content: Mapping[str, Any], *, where: str) -> M:
    """Validate values; raise `ConfigurationError` with all missing keys, or the first problem."""
    try:
        # Strict, as TOML and JSON have types: `seed = true` and `steps = "10"` are mistakes.
        return kind.model_validate(content, strict=True)
    except ValidationError as error:
        key, reason = first_problem(error, kind)
        missing = [
            ".".join(str(part) for part in entry["loc"] if not str(part).startswith("kind:"))
            for entry in error.errors(include_url=False)
            if entry["type"] == "missing"
        ]
        if key in missing:
            key = ", ".join(missing)
        raise ConfigurationError(reason, where=where, key=key, hint=_HINT) from error


def _refuse(read: M, problems: Iterable[tuple[str, str]], *, where: str) -> M:
    """Return the value; raise `ConfigurationError` for the first (key, reason)."""
    for key, reason in problems:
        raise ConfigurationError(reason, where=where, key=key, hint=_HINT)
    return read


def _misfits(workloads: Mapping[str, Workload | CommandWorkload]) -> Iterator[tuple[str, str]]:
    """Yield (key, reason) for valid values that contradict each other.

    Checked in the suite and not in the RunSpec's models, so that the error names the key in the suite.
    """
    for name, workload in workloads.items():
        if isinstance(workload, CommandWorkload):
            continue
        micro = workload.optimizer.accumulation_steps
        if workload.batch_size % micro:
            reason = f"{micro} does not divide batch_size, {workload.batch_size}"
            yield f"workloads.{name}.optimizer.accumulation_steps", reason
        if workload.speed and workload.speed.padding == "packed" and has_row_labels(workload.task):
            reason = 'a row of several texts has one class only in transformers: packed rows need task = "masked-lm"'
            yield f"workloads.{name}.speed.padding", reason
        for step in workload.probe.tap_steps if workload.probe else ():
            if workload.probe and not 0 <= step < workload.probe.steps:
                reason = f"{step} is not a step of the probe: its steps are 0 to {workload.probe.steps - 1}"
                yield f"workloads.{name}.probe.tap_steps", reason
