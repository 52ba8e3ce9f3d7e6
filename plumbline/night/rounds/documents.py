"""Documents of a round before training: claim, secret, specs.

All starts of a round's controller share the secret, and the last one alone may publish. A controller that was taken for
dead, such as a suspended machine, may wake up beside the start that continues its round. Each start claims the round,
and a start whose claim was replaced publishes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress

from pydantic import Field

from plumbline.night.central import CentralStore, round_key, secret_key
from plumbline.schema.base import Model, read_model
from plumbline.schema.captured import AnySpecFile, CapturedSpec, read_any_spec
from plumbline.schema.command import CommandWorkload
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import ConfigurationError, InvalidInputError, SupersededError
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import Suite

_CLAIM_NAME = "controller"

_SECRET_BYTES = 32


class Controller(Model):
    """One start of the flow run that controls a round or upgrade."""

    flow_run: str
    start: int = Field(ge=0)
    """Prefect's number of the start: 2 after the first crash."""


def claim_round(central: CentralStore, suite: str, round_id: str, controller: Controller) -> None:
    """Claim the round for this start; raise `SupersededError` after a later start."""

    def claim(data: bytes | None) -> bytes:
        holder = _parsed(central, key, data)
        if holder is not None and holder.flow_run == controller.flow_run and holder.start > controller.start:
            raise _superseded(round_id)
        return canonical_json(controller.to_json())

    key = round_key(suite, round_id, _CLAIM_NAME)
    central.change_document(key, claim)


def check_claim(central: CentralStore, suite: str, round_id: str, controller: Controller) -> None:
    """Raise `SupersededError` if a later start or different run claimed the round.

    The claim of an earlier start of the same run supersedes nobody: a start may end before its own claim.
    """
    key = round_key(suite, round_id, _CLAIM_NAME)
    holder = _parsed(central, key, central.read_document(key))
    if holder is not None and (holder.flow_run != controller.flow_run or holder.start > controller.start):
        raise _superseded(round_id)


def _superseded(round_id: str) -> SupersededError:
    return SupersededError("a later start of its controller continues this round", where=round_id)


def _parsed(central: CentralStore, key: str, data: bytes | None) -> Controller | None:
    return read_model(Controller, data, where=f"{central.store.url}/{key}") if data is not None else None


def round_secret(central: CentralStore, suite: str, round_id: str) -> str:
    """Return a round's secret, created randomly on first use.

    It is outside of `rounds/`, which `report_url` may publish.
    """
    key = secret_key(suite, round_id)
    if (kept := central.read_document(key)) is None:
        central.change_document(key, lambda now: secrets.token_hex(_SECRET_BYTES).encode() if now is None else None)
        kept = central.read_document(key)
    if kept is None or len(kept) != 2 * _SECRET_BYTES:
        raise InvalidInputError("is not a secret of a round", where=central.store.url, key=key)
    return kept.decode("ascii", errors="replace")


def _spec_key(suite: Suite, workload: str) -> str:
    return f"specs/{suite.name}/{workload}.json"


def write_specs(central: CentralStore, suite: Suite, specs: Mapping[str, RunSpec | CapturedSpec]) -> None:
    """Store the specs for later rounds. Idempotent."""
    for workload, spec in specs.items():
        central.put_text(_spec_key(suite, workload), AnySpecFile(digest=spec.digest, spec=spec).model_dump_json())


def round_specs(central: CentralStore, suite: Suite, round_id: str) -> dict[str, RunSpec | CapturedSpec]:
    """Return the specs that the round's first start has read, even if others were published since.

    A round that is started again with a different suite reads the published ones. Raises if missing or outdated.
    """
    kept = {workload: round_key(suite.name, round_id, f"spec-{workload}.json") for workload in suite.workloads}
    with suppress(ConfigurationError):
        return {workload: _read_spec(central, suite, workload, key) for workload, key in kept.items()}
    specs = {workload: _read_spec(central, suite, workload, _spec_key(suite, workload)) for workload in kept}
    for workload, spec in specs.items():
        central.put_text(kept[workload], AnySpecFile(digest=spec.digest, spec=spec).model_dump_json())
    return specs


def _read_spec(central: CentralStore, suite: Suite, workload: str, key: str) -> RunSpec | CapturedSpec:
    data = central.read_document(key)
    if data is None:
        hint = "publish data and specs with `plumbline deploy SUITE --publish`"
        raise ConfigurationError("no spec was published yet", where=central.store.url, key=key, hint=hint)
    spec, asked = read_any_spec(data, where=f"{central.store.url}/{key}"), suite.workloads[workload]
    same: tuple[str, ...] = ("seed", "batch_size", "task", "optimizer", "schedule", "probe", "speed", "learn")
    if isinstance(asked, CommandWorkload):
        same = ("seed", "steps", "command")
    missing = object()
    changed = [name for name in same if getattr(spec, name, missing) != getattr(asked, name)]
    if isinstance(asked, CommandWorkload) and getattr(spec, "files", {}).keys() != asked.files.keys():
        changed.append("files")
    if changed:
        hint = "publish the new spec with `plumbline deploy SUITE --publish`"
        text = f"the suite differs from the published spec: {', '.join(changed)}"
        raise ConfigurationError(text, where=central.store.url, key=key, hint=hint)
    return spec
