"""Preparation of a suite: build and publish datasets, weights and specs.

Builds are named by the digest of their inputs, so that a second call finds and reuses them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from plumbline.data.datasets import (
    architecture,
    build_dataset,
    make_spec,
    publish,
    publish_file,
    read_manifest,
    weights_key,
)
from plumbline.data.datasets.build import MANIFEST_NAME
from plumbline.data.datasets.files import content_marks, is_file_source
from plumbline.data.datasets.receipts import receipt_lines
from plumbline.data.datasets.spec import dataset_source, dataset_task
from plumbline.data.datasets.tokenizer import tokenizer_file
from plumbline.data.staging.shipped import file_key
from plumbline.data.stores import open_store
from plumbline.environments.launch import make_weights
from plumbline.schema.captured import CapturedSpec, ShippedData
from plumbline.schema.command import MAX_FILE_BYTES, CommandWorkload
from plumbline.schema.digest import digest_file, digest_json
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import Suite, Workload

_COMMAND_SECONDS = 300.0
_ROOT = Path(__file__).resolve().parents[2]


class _Built(NamedTuple):
    """Build results of one workload."""

    datasets: Mapping[Path, Manifest]
    files: Mapping[str, tuple[Path, str]]
    """Path and digest of single files, by the object's key."""


Specs = dict[str, RunSpec | CapturedSpec]


def prepare(suite: Suite, folder: Path, say: Callable[[str], None]) -> Specs:
    """Build and publish everything; return each workload's spec."""
    specs: Specs = {}
    built: dict[str, _Built] = {}
    for name, workload in suite.workloads.items():
        if isinstance(workload, CommandWorkload):
            specs[name], built[name] = _command(suite, name, workload, folder, say)
            continue
        dataset, manifest = _dataset(suite, workload.data, folder, say)
        file, sha256 = _weights(workload, manifest, folder, say)
        built[name] = _Built({dataset: manifest}, {weights_key(sha256): (file, sha256)})
        specs[name] = make_spec(suite, name, manifest, sha256)
    # A single platform publishes for all that share a store, as concurrent pushes would conflict.
    first = {platform.data: name for name, platform in reversed(suite.platforms.items())}
    with ThreadPoolExecutor(len(first), thread_name_prefix="publish") as pool:
        # Consume the results, so that the first failure is raised here.
        for line in pool.map(lambda name: _publish(suite, name, built), sorted(first.values())):
            say(line)
    for name in suite.local:
        _run_command(suite, name)
    return specs


def _command(
    suite: Suite, name: str, workload: CommandWorkload, folder: Path, say: Callable[[str], None]
) -> tuple[CapturedSpec, _Built]:
    """Return a command's spec, with its files by digest, and its dataset, if it has one."""
    files: dict[str, tuple[Path, str]] = {}
    digests = {}
    for place, given in workload.files.items():
        path = Path(given)
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            why = "no such file" if not path.is_file() else f"is larger than {MAX_FILE_BYTES >> 20} MiB"
            key, hint = f"workloads.{name}.files", "large data is a dataset: see the key `data`"
            raise ConfigurationError(f"{place}: {why}", where=suite.name, key=key, hint=hint)
        digests[place] = digest_file(path)
        files[file_key(digests[place])] = (path, digests[place])
    datasets, data = {}, None
    if workload.data is not None:
        dataset, manifest = _dataset(suite, workload.data, folder, say)
        datasets[dataset], data = manifest, ShippedData(name=manifest.name, manifest_sha256=manifest.digest)
    spec = CapturedSpec(
        workload=name, seed=workload.seed, steps=workload.steps, command=workload.command, files=digests, data=data
    )
    return spec, _Built(datasets, files)


def _dataset(suite: Suite, data: str, folder: Path, say: Callable[[str], None]) -> tuple[Path, Manifest]:
    source = dataset_source(suite, data, suite.name)
    task = dataset_task(suite, data)
    made_from = {"source": source.to_json(), "name": data, "task": task}
    tokenizer = tokenizer_file(Path(source.tokenizer or ""))
    files = [tokenizer, tokenizer.with_name("tokenizer_config.json")] if source.tokenizer else []
    paths = [path for path in (source.path, source.evaluation_path) if path and is_file_source(path)]
    made_from["bytes"] = [*_digests(files), *(line for path in paths for line in content_marks(path))]
    built = folder / "datasets" / f"{data}-{digest_json(made_from)[:16]}"
    if (built / MANIFEST_NAME).is_file():
        return built, read_manifest(built)
    say(f"building the dataset {data}")
    manifest = build_dataset(source, data, task, built)
    for line in receipt_lines(manifest):
        say(f"{data}: {line}")
    return built, manifest


def _weights(workload: Workload, manifest: Manifest, folder: Path, say: Callable[[str], None]) -> tuple[Path, str]:
    model = architecture(workload, manifest)
    checkpoint = model.get("checkpoint")
    made_from = {
        "model": model,
        "seed": workload.seed,
        "bytes": _digests(sorted(Path(str(checkpoint)).glob("*.safetensors*")) if checkpoint else []),
    }
    path = folder / "weights" / f"{digest_json(made_from)[:16]}.safetensors"
    if path.is_file():
        return path, digest_file(path)
    say(f"making the initial weights of {workload.model}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, make_weights(model, workload.seed, path)


def _digests(files: Iterable[Path]) -> list[str]:
    """Return (name, digest) of each existing file."""
    return [f"{file.name} {digest_file(file)}" for file in files if file.is_file()]


def _publish(suite: Suite, platform: str, built: Mapping[str, _Built]) -> str:
    """Publish the data and weights for all platforms of one store."""
    url = suite.platforms[platform].data
    sharing = [name for name, place in suite.platforms.items() if place.data == url]
    wanted = [built[workload] for name in sharing for workload in suite.workloads_of(name)]
    store, datasets = open_store(url), {path: manifest for each in wanted for path, manifest in each.datasets.items()}
    written = [publish(folder, store, manifest.name).written for folder, manifest in datasets.items()]
    files = {key: file for each in wanted for key, file in each.files.items()}
    new = sum(written) + sum(publish_file(path, store, key, sha256) for key, (path, sha256) in files.items())
    return f"{platform}: {new} objects published" if new else f"{platform}: everything was published already"


def _run_command(suite: Suite, platform: str) -> None:
    """Run a platform's own preparation command, for drift demonstrations."""
    command = suite.local[platform].prepare
    if not command:
        return
    values = {"python": sys.executable, "data": suite.platforms[platform].data, "root": str(_ROOT)}
    filled = [part.format(**values) for part in command]
    done = subprocess.run(filled, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        key = f"local.{platform}.prepare"
        raise ConfigurationError(f"exit code {done.returncode}: {last}", where=suite.name, key=key)
