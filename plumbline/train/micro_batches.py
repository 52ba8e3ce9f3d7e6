"""Micro-batches of the probe, which may be smaller than those of `speed` and `learn`."""

from __future__ import annotations

from plumbline.schema.spec import RunSpec


def of_probe(spec: RunSpec, world: int = 1) -> RunSpec:
    """Return the spec with the probe's micro-batches, for each of `world` processes.

    The spec alone decides, so that every machine adds up the same parts in the same order.
    """
    most = spec.probe.micro_batch if spec.probe else None
    if most is None:
        return spec
    rows = spec.batch_size // world
    parts = next(parts for parts in range(-(-rows // most), rows + 1) if rows % parts == 0)
    return _in_parts(spec, parts)


def of_one_process(spec: RunSpec, world: int) -> RunSpec:
    """Return the spec with the micro-batches of `world` processes for one."""
    return _in_parts(spec, spec.optimizer.accumulation_steps * world)


def _in_parts(spec: RunSpec, parts: int) -> RunSpec:
    # Not validated: the parts of several processes may be more than a suite may ask for.
    optimizer = spec.optimizer.model_copy(update={"accumulation_steps": parts})
    return spec.model_copy(update={"optimizer": optimizer})
