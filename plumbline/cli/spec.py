"""`plumbline spec SUITE WORKLOAD --out FILE`: write a workload's RunSpec and weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from plumbline.cli.options import check_file, say, summary
from plumbline.data.datasets import architecture, build_dataset, make_spec, publish, publish_weights, read_manifest
from plumbline.data.datasets.classes import listed_classes
from plumbline.data.datasets.receipts import receipt_lines
from plumbline.data.datasets.spec import SIZES, dataset_source, dataset_task, workload_named
from plumbline.data.stores import open_store
from plumbline.environments.launch import make_weights
from plumbline.schema.errors import ExitCode
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import write_spec
from plumbline.schema.suite import FINE_TUNING_RATE, Workloads, read_workloads


def register(subparsers: Any) -> None:
    """Add the command `spec` to the parser."""
    parser = subparsers.add_parser("spec", help=summary(__doc__), description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument("workload", help="name of a workload of the suite")
    parser.add_argument("--out", type=Path, required=True, help="file for the RunSpec")
    parser.add_argument("--data", type=Path, help="a built dataset's folder (default: built from the suite)")
    parser.add_argument("--to", metavar="URL", help="publish dataset and weights here (default: beside the file)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build and publish the workload's data and weights, and write the spec."""
    suite = read_workloads(args.suite)
    workload = workload_named(suite, args.workload, str(args.suite))
    check_file(args.out, parents=True)
    folder = args.data or args.out.parent / "build" / workload.data
    manifest = read_manifest(folder) if args.data else _built(suite, workload.data, folder, args.suite)
    say(f"making the weights of {args.workload} ({workload.model}) ...", to_stderr=True)
    weights = args.out.parent / "build" / f"{args.workload}.safetensors"
    sha256 = make_weights(architecture(workload, manifest), workload.seed, weights)
    spec = make_spec(suite, args.workload, manifest, sha256)
    url = args.to or f"file://{(args.out.parent / 'data').resolve()}"
    store = open_store(url)
    say(f"publishing {workload.data} and the weights to {url} ...", to_stderr=True)
    publish(folder, store, workload.data)
    publish_weights(weights, store, sha256)
    write_spec(spec, args.out)
    answer = {
        "spec": str(args.out), "digest": spec.digest, "data": url, "parts": list(spec.parts),
        "classes": list(spec.data.class_names),
    }  # fmt: skip
    if args.json:
        print(json.dumps(answer))
    else:
        say(f"{args.out}: {args.workload}, {', '.join(spec.parts)}, digest {spec.digest[:12]}")
        for line in receipt_lines(manifest):
            say(f"{workload.data}: {line}")
        if workload.model not in SIZES and spec.learn:
            rate, steps = workload.optimizer.learning_rate, spec.learn.steps
            chosen = f"set optimizer.learning_rate and learn.steps in [workloads.{args.workload}]"
            if rate == FINE_TUNING_RATE:
                say(f"default: the checkpoint trains {steps} steps at a learning rate of {rate:g} ({chosen})")
        if spec.data.class_names:
            say(f"classes: {listed_classes(spec.data.class_names)}")
        say(f"next: plumbline train {args.out} --out RECORD --data {url}")
    return int(ExitCode.PASS)


def _built(suite: Workloads, name: str, folder: Path, where: Path) -> Manifest:
    say(f"building the dataset {name} ...", to_stderr=True)
    return build_dataset(dataset_source(suite, name, str(where)), name, dataset_task(suite, name), folder)
