"""Text of a new suite, with a comment on each choice. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from plumbline.schema.base import Model


class NewPlatform(Model):
    """Platform of a new suite: work pool, stores and GPU."""

    work_pool: str
    data: str
    outbox: str
    accelerator: str = ""
    machines: str = ""
    """Group of virtual machines that is up for a round alone."""

    @classmethod
    def of_bucket(cls, name: str, bucket: str, accelerator: str = "", *, kind: str = "gpu") -> Self:
        """Return a platform that stores data and records below one URL."""
        url = bucket.rstrip("/")
        return cls(work_pool=f"{name}-{kind}", data=f"{url}/data", outbox=f"{url}/outbox", accelerator=accelerator)


@dataclass(frozen=True, slots=True)
class NewSuite:
    """User's choices for a new suite; empty texts mean the default."""

    name: str
    platforms: Mapping[str, NewPlatform]
    """By name; none for two platforms on this machine."""
    store: str
    data: str
    text_column: str
    label_column: str
    model: str
    cron: str
    timezone: str
    alert: str
    report_url: str = ""
    command: str = ""
    """The team's own training, instead of a BERT."""
    files: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Return whether all platforms are on this machine."""
        return not self.platforms

    @property
    def places(self) -> Mapping[str, NewPlatform]:
        """Return the chosen platforms, or the local default."""
        return self.platforms or _HERE


_HERE = {name: NewPlatform.of_bucket(name, f"s3://plumbline-{name}", "cpu", kind="local") for name in ("one", "two")}


def suite_text(suite: NewSuite, schema: str) -> str:
    """Return the suite as TOML. Editors find its JSON Schema by the first line."""
    blocks = [
        _head(suite, schema),
        *([_dataset(suite)] if suite.data or not suite.command else []),
        *(_command(suite) if suite.command else _workload(suite)),
        *(_platform(name, platform, is_here=suite.is_here) for name, platform in suite.places.items()),
        *_gates(suite),
    ]
    return "\n\n".join(blocks) + "\n"


def _head(suite: NewSuite, schema: str) -> str:
    store = suite.store or "file://.plumbline/central"
    link = (
        f"\nreport_url = {_text(suite.report_url)} # links of alerts; `plumbline store site --serve` serves a local one"
    )
    return (
        f"#:schema {schema}\n"
        "# A suite: what is trained, where, and what counts as drift. docs/SUITE.md lists every key.\n"
        "# It has no credentials: each SDK finds its own (environment, profile, instance or workload identity).\n"
        f"name = {_text(suite.name)}\n"
        f"store = {_text(store)} # the controller's own: records, baselines, reports\n"
        f"reference = {_text(next(iter(suite.places)))} # the others are compared with this platform"
        f"{link if suite.report_url else ''}"
    )


def _dataset(suite: NewSuite) -> str:
    if not suite.data:
        return (
            '# Generated reviews. For your own rows: path = "reviews.csv" in place of grammar_seed (CSV, TSV, JSON,\n'
            "# JSONL, Parquet, a folder, a store URL, or a Hugging Face dataset).\n"
            "[datasets.rows]\ngrammar_seed = 1\ntrain_rows = 4096\nevaluation_rows = 1024"
        )  # fmt: skip
    lines = ["[datasets.rows]", f"path = {_text(suite.data)}"]
    columns = (("text_column", suite.text_column, "text"), ("label_column", suite.label_column, "label"))
    for key, value, usual in columns:
        lines.append(
            f"{key} = {_text(value)}" if value else f'# {key} = "..." # needed unless one is named like `{usual}`'
        )
    return "\n".join(lines)


def _workload(suite: NewSuite) -> Iterator[str]:
    sizes = (16, 64, 12, 40, 120) if suite.is_here else (32, 128, 20, 200, 2000)
    batch, length, probe, speed, learn = sizes
    yield (
        "[workloads.bert]\n"
        f"model = {_text(suite.model)} # tiny ... base, large, a checkpoint's folder, or NAME@REVISION\n"
        f'data = "rows"\nseed = 7\nbatch_size = {batch} # of one step, over all devices\nsequence_length = {length}'
    )
    yield f"[workloads.bert.probe] # strict and short: the evidence that names a cause\nsteps = {probe}"
    precision = "fp32" if suite.is_here else "bf16"
    settings = f"steps = {speed}\nprecision = {_text(precision)}" + ("" if suite.is_here else "\ncompile = true")
    yield f"[workloads.bert.speed] # the settings that your team trains with\n{settings}"
    evaluations = f"evaluate_every = {learn // 2}\ncheckpoint_every = {learn // 2}"
    evaluations += "\nevaluation_rows = 256" if suite.is_here else ""
    heading = "[workloads.bert.learn] # to an accuracy, with the same dropout on every device"
    yield f"{heading}\nsteps = {learn}\n{evaluations}"


def _command(suite: NewSuite) -> Iterator[str]:
    data = '\ndata = "rows" # its files lie in the folder that PLUMBLINE_DATA names' if suite.data else ""
    yield (
        "[workloads.mine] # your own training: its script calls plumbline.capture around the loop\n"
        f"command = {_text(suite.command)}\n"
        f"files = {json.dumps(suite.files, ensure_ascii=False)} # relative to this file, copied for each run{data}\n"
        "steps = 20 # updates that are recorded; from about 40 on their throughput is measured, too\nseed = 7"
    )


def _platform(name: str, platform: NewPlatform, *, is_here: bool) -> str:
    gpu = _text(platform.accelerator)
    hint = " # the GPU's whole name, as its driver gives it; empty: any" if not is_here else ""
    lines = [
        f"[platforms.{_key(name)}]",
        f"work_pool = {_text(platform.work_pool)}",
        f"data = {_text(platform.data)} # its workers only read here",
        f"outbox = {_text(platform.outbox)} # its workers only create records here",
        f"accelerator = {gpu}{hint}",
    ]
    lines += [f"machines = {_text(platform.machines)} # up for a round alone"] if platform.machines else []
    lines += [] if is_here else ["start_seconds = 1800 # until a machine is found"]
    return "\n".join(lines)


def _gates(suite: NewSuite) -> Iterator[str]:
    drop = "0.25 # two workers share this machine; a quiet GPU holds 0.05" if suite.is_here else "0.05 # relative"
    yield f"[gates]\naccuracy_margin = 0.02 # absolute\nthroughput_drop = {drop}"
    if len(suite.places) == 1:
        yield "[dispatch]\nquorum = 1 # one platform is compared with its own past only"
    if suite.cron:
        yield f"[schedule]\ncron = {_text(suite.cron)}\ntimezone = {_text(suite.timezone)}"
    if suite.alert:
        has_machines = any(platform.machines for platform in suite.platforms.values())
        events = ["drift", "invalid", "unavailable", "unjudged", "missed", "recovered", *["left-on"] * has_machines]
        block, _, variable = suite.alert.partition("=")
        where = "# a Prefect block; `address_from` names a variable from which `plumbline deploy` creates it"
        yield f"[[alerts]]\non = {json.dumps(events)}\nblock = {_text(block)} {where}" + (
            f"\naddress_from = {_text(variable)}" if variable else ""
        )


def bucket_commands(suite: NewSuite) -> list[str]:
    """Return each cloud's commands to create the buckets."""
    urls = [url for platform in suite.platforms.values() for url in (platform.data, platform.outbox)]
    urls += [suite.store] * bool(suite.store)
    commands = []
    for url in urls:
        scheme, _, rest = url.partition("://")
        bucket, *path = rest.strip("/").split("/")
        if scheme == "s3":
            commands.append(f"aws s3 mb s3://{bucket}")
        elif scheme == "gs":
            commands.append(f"gcloud storage buckets create gs://{bucket} --uniform-bucket-level-access")
        elif scheme == "az" and path:
            commands.append(f"az storage container create --account-name {bucket} --name {path[0]} --auth-mode login")
    return list(dict.fromkeys(commands))


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
