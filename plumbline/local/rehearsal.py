"""Rehearsal of a suite on this machine, with small trainings. Pure."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from plumbline.schema.command import CommandWorkload
from plumbline.schema.spec import SpeedSpec
from plumbline.schema.store_url import parse_store_url
from plumbline.schema.suite import DatasetSource, Platform, Suite, Workload

SUFFIX = "-rehearsal"
"""Ends the name of a rehearsed suite, so that its rounds and deployments are never the real ones."""

_ACCOUNT = "devstoreaccount1"
_ROWS = 2048
_SIZES = {"mini", "small", "medium", "base", "large"}


def rehearsal(suite: Suite, state: Path, variables: Container[str]) -> Suite:
    """Return the suite with small trainings and local stores. `state` keeps its central store.

    Gates and data sources stay, and the recipients whose address is in one of the set `variables`. Named sizes become
    `tiny`; a checkpoint stays, as it has a size of its own.
    """
    content = {
        "name": suite.name.removesuffix(SUFFIX)[: 63 - len(SUFFIX)] + SUFFIX,
        "store": f"file://{(state / 'central').resolve()}",
        "report_url": "",
        "workloads": {name: _small(workload).to_json() for name, workload in suite.workloads.items()},
        "platforms": {name: _here(platform).to_json() for name, platform in suite.platforms.items()},
        "datasets": {name: _few_rows(source).to_json() for name, source in suite.datasets.items()},
        "schedule": None,
        "alerts": [alert.to_json() for alert in suite.alerts if alert.address_from in variables],
    }
    return Suite.model_validate({**suite.to_json(), **content})


def _small(workload: Workload | CommandWorkload) -> Workload | CommandWorkload:
    if isinstance(workload, CommandWorkload):
        return workload  # nothing says how to make it smaller
    probe, speed, learn = workload.probe, workload.speed, workload.learn
    batch = min(workload.batch_size, 16)
    micro = workload.optimizer.accumulation_steps
    return workload.replace(
        model="tiny" if workload.model in _SIZES else workload.model,
        batch_size=batch if batch % micro == 0 else micro,
        sequence_length=min(workload.sequence_length, 64),
        probe=probe and probe.replace(steps=min(probe.steps, 8), tap_steps=[s for s in probe.tap_steps if s < 8]),
        speed=speed and _plain(speed),
        learn=learn and learn.replace(steps=min(learn.steps, 60), evaluate_every=60, evaluation_rows=128),
    )


def _plain(speed: SpeedSpec) -> SpeedSpec:
    """Return throughput settings that work without GPU, compiler or several processes."""
    attention = "sdpa" if speed.attention == "flash_attention_2" else speed.attention
    return speed.replace(
        steps=min(speed.steps, 20), precision="fp32", compile=False, compile_mode="default", attention=attention,
        distributed="ddp",
    )  # fmt: skip


def _here(platform: Platform) -> Platform:
    return platform.replace(
        api="", data=_local_url(platform.data), outbox=_local_url(platform.outbox), accelerator="cpu", gpus=1, nodes=1,
        lock="", queue="", job_variables={}, concurrency=1, machines="",
    )  # fmt: skip


def _local_url(url: str) -> str:
    """Convert a store URL to its local stack equivalent (not for Google's)."""
    address = parse_store_url(url)
    if address.scheme == "az":
        return "/".join(part for part in (f"az://{_ACCOUNT}", address.container, address.prefix) if part)
    if address.scheme == "gs":
        return "/".join(part for part in (f"s3://{address.bucket}", address.prefix) if part)
    return url


def _few_rows(source: DatasetSource) -> DatasetSource:
    return source.replace(
        train_rows=min(source.train_rows, _ROWS), evaluation_rows=min(source.evaluation_rows, 256),
        vocab_size=min(source.vocab_size, 2048),
    )  # fmt: skip


def to_toml(content: dict[str, Any]) -> str:
    """Format JSON values as TOML, one line per key, without empty keys."""
    return "".join(f"{_text(key)} = {_value(value)}\n" for key, value in content.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_text(key)} = {_value(inner)}" for key, inner in value.items() if inner is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
