"""Program that builds a training's inputs: dataset, tokenizer, weights.

`python -m plumbline.upgrade.inputs SUITE WORKLOAD OUT`. It runs in the environment that is compared, and digests
content, not layout: another release of pyarrow may write the same rows as other bytes, and another release of
tokenizers the same vocabulary as another file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from plumbline.environments.loaded import write_loaded
from plumbline.environments.parent_watch import watch_parent
from plumbline.schema.base import Model, Sha256, read_model
from plumbline.schema.captured import CapturedSpec, write_any_spec
from plumbline.schema.digest import digest_array, digest_json
from plumbline.schema.errors import ExitCode, PlumblineError
from plumbline.schema.suite import Suite

INPUTS_NAME = "inputs.json"
_BATCH = 1024


class Inputs(Model):
    """Digests of a training's inputs."""

    rows: Sha256
    """Texts, labels and order of all rows."""
    vocabulary: Sha256
    token_ids: Sha256
    """Of all rows, by the tokenizer that was built with them."""
    weights: Sha256
    """Names, shapes and values of the initial weights."""


class InputsFile(Model):
    """Content of `inputs.json`, written by the program."""

    schema_version: Literal[1] = 1
    inputs: Inputs


def alone(suite: Suite, workload: str, folder: Path) -> Suite:
    """Return the suite reduced to one workload on this machine.

    Its store is in `folder`.
    """
    store = f"file://{folder.resolve()}"
    here = {"work_pool": "upgrade", "data": store, "outbox": store}
    chosen = {workload: suite.workloads[workload]}
    return suite.replace(workloads=chosen, platforms={"upgrade": here}, reference="upgrade", local={}, alerts=())


def build_inputs(suite: Suite, workload: str, out: Path) -> Inputs:
    """Build dataset, tokenizer and weights below `out`, and return their digests.

    They are built with the packages of this interpreter.
    """
    from plumbline.night.prepare import prepare

    here = alone(suite, workload, out / "data")
    spec = prepare(here, out / "built", _say)[workload]
    write_any_spec(spec, out / "spec.json")
    if isinstance(spec, CapturedSpec):
        # What a command reads is shipped as it is, and no package makes it anew.
        shipped = digest_json([spec.files, spec.data.to_json() if spec.data else None])
        return Inputs(rows=shipped, vocabulary=shipped, token_ids=shipped, weights=shipped)
    folder = next(path.parent for path in (out / "built" / "datasets").glob("*/manifest.json"))
    weights = next((out / "built" / "weights").glob("*.safetensors"))
    return _digests(folder, weights)


def _digests(folder: Path, weights: Path) -> Inputs:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    from plumbline.data.datasets import read_manifest

    manifest = read_manifest(folder)
    tokenizer = Tokenizer.from_str((folder / manifest.tokenizer.key).read_text(encoding="utf-8"))
    rows: list[str] = []
    ids: list[str] = []
    for batch in _batches([folder / shard.key for shard in manifest.shards]):
        rows.append(digest_json(batch))
        texts = list(zip(batch["text"], batch["text_pair"], strict=True)) if "text_pair" in batch else batch["text"]
        ids.append(digest_json([encoding.ids for encoding in tokenizer.encode_batch(texts)]))
    tensors = load_file(weights)
    return Inputs(
        rows=digest_json(rows),
        vocabulary=digest_json(tokenizer.get_vocab(with_added_tokens=True)),
        token_ids=digest_json(ids),
        weights=digest_json([[name, digest_array(tensors[name])] for name in sorted(tensors)]),
    )


def _batches(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(_BATCH):
            yield batch.to_pydict()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(argv: list[str] | None = None) -> int:
    """Build and digest the inputs, writing `inputs.json` last."""
    watch_parent(os.environ)
    suite, workload, out = sys.argv[1:] if argv is None else argv
    try:
        inputs = build_inputs(read_model(Suite, Path(suite)), workload, Path(out))
    except PlumblineError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    finally:
        write_loaded(os.environ)
    path = Path(out) / INPUTS_NAME
    path.write_text(json.dumps(InputsFile(inputs=inputs).to_json()), encoding="utf-8")
    return int(ExitCode.PASS)


if __name__ == "__main__":
    sys.exit(main())
