"""Suite of two small trainings, and its TOML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plumbline.schema.suite import Suite

LIMITS = {"start_seconds": 300, "run_seconds": 600}
"""Limits of a platform that only a hanging worker exceeds: a busy machine takes 40 s to start a run."""

_PLATFORMS = {
    "aws": {"data": "s3://plumbline-data/drill", "outbox": "s3://plumbline-outbox/drill"},
    "azure": {"data": "az://devstoreaccount1/data/drill", "outbox": "az://devstoreaccount1/outbox/drill"},
    "onprem": {"data": "file://{state}/onprem/data", "outbox": "file://{state}/onprem/outbox"},
}


def small_suite(
    state: Path, name: str = "drill", platforms: tuple[str, ...] = ("aws", "azure"), *, steps: int = 6, **more: Any
) -> Suite:
    """Return a suite with trainings of a few seconds; `more` changes every platform, `{platform}` in it its name."""
    limits = {**LIMITS, **more}
    chosen = {
        key: {
            "work_pool": f"{key}-local",
            **{kind: url.format(state=state) for kind, url in _PLATFORMS[key].items()},
            **{name: value.format(platform=key) if isinstance(value, str) else value for name, value in limits.items()},
        }
        for key in platforms
    }
    probe = {"steps": steps, "evaluation_rows": 16}
    return Suite.model_validate(
        {
            "name": name,
            "store": f"file://{state}/central",
            "reference": platforms[0],
            "datasets": {"reviews": {"grammar_seed": 1, "train_rows": 256, "evaluation_rows": 64, "vocab_size": 512}},
            "workloads": {
                "tiny": {
                    "model": "tiny", "data": "reviews", "seed": 7, "batch_size": 8, "sequence_length": 32,
                    "probe": probe,
                }
            },
            "platforms": chosen,
        }
    )  # fmt: skip


def write_suite(suite: Suite, folder: Path) -> Path:
    """Write the suite as `suite.toml` into `folder`; return the file."""
    path = folder / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    return path


def to_toml(content: dict[str, Any]) -> str:
    """Return a suite as TOML with inline tables."""

    def value(one: Any) -> str:
        if isinstance(one, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in one.items()) + "}"
        if isinstance(one, list):
            return "[" + ", ".join(value(inner) for inner in one) + "]"
        return json.dumps(one)

    return "\n".join(f"{key} = {value(one)}" for key, one in content.items() if one is not None)
