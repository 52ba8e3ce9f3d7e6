"""Files of a command on the way to a gate's worker: by digest in the order, from the platform's data store there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.data.staging.shipped import shipped_files
from plumbline.schema.captured import CapturedSpec, Spec
from plumbline.schema.command import CommandWorkload
from plumbline.schema.suite import Suite

_BY_DIGEST = "sha256:"


def with_digests(suite: Suite, workload: str, spec: Spec) -> Suite:
    """Return the suite with a command's published files by their digests: the author's paths are of one machine."""
    command = suite.workloads[workload]
    if not isinstance(command, CommandWorkload) or not isinstance(spec, CapturedSpec):
        return suite
    files = {name: f"{_BY_DIGEST}{sha256}" for name, sha256 in spec.files.items()}
    return suite.replace(workloads={**suite.workloads, workload: command.replace(files=files)})


@contextmanager
def with_files(suite: Suite, workload: str, platform: str, cache: Path) -> Iterator[Suite]:
    """Yield the suite with a command's files as paths in the cache, which keeps them until the end."""
    command = suite.workloads[workload]
    if not isinstance(command, CommandWorkload) or not command.files:
        yield suite
        return
    digests = {name: value.removeprefix(_BY_DIGEST) for name, value in command.files.items()}
    with shipped_files(suite.platforms[platform].data, digests.values(), cache) as paths:
        files = {name: str(paths[sha256]) for name, sha256 in digests.items()}
        yield suite.replace(workloads={**suite.workloads, workload: command.replace(files=files)})
