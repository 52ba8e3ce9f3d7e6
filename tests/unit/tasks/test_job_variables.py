"""Job variables that a round sends to a training's work pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.tasks.dispatch import _job_variables

INFRA = Path(__file__).resolve().parents[3] / "infra"


@pytest.mark.parametrize(
    ("image", "gpus", "variables"),
    [
        ("", 1, None),
        ("", 2, {"gpus": 2}),
        ("worker:1", 1, {"image": "worker:1", "env": {"PLUMBLINE_IMAGE": "worker:1"}}),
        ("worker:1", 4, {"image": "worker:1", "env": {"PLUMBLINE_IMAGE": "worker:1"}, "gpus": 4}),
    ],
)
def test_the_suite_s_gpus_reach_the_template_s_variable(
    image: str, gpus: int, variables: dict[str, Any] | None
) -> None:
    assert _job_variables(image, gpus) == variables
    template = json.loads((INFRA / "kubernetes" / "gpu-job-template.json").read_text("utf-8"))
    assert set(variables or {}) <= template["variables"]["properties"].keys()
