"""docs/SUITE.md lists every key of the schema, with its default, and nothing else."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from plumbline.data.spec import SIZES
from plumbline.schema import spec, suite
from plumbline.schema.alert_event import EVENTS
from plumbline.schema.base import Model
from plumbline.schema.suite import Suite
from plumbline.schema.task import TASKS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "SUITE.md").read_text(encoding="utf-8")
SECTIONS = {
    "The suite itself": suite.Suite,
    "`[workloads.NAME]`": suite.Workload,
    "`[workloads.NAME.optimizer]`": spec.OptimizerSpec,
    "`[workloads.NAME.schedule]`": spec.ScheduleSpec,
    "`[workloads.NAME.probe]`": spec.ProbeSpec,
    "`[workloads.NAME.speed]`": spec.SpeedSpec,
    "`[workloads.NAME.learn]`": spec.LearnSpec,
    "`[platforms.NAME]`": suite.Platform,
    "`[datasets.NAME]`": suite.DatasetSource,
    "`[gates]`": suite.Gates,
    "`[dispatch]`": suite.Dispatch,
    "`[schedule]`": suite.Schedule,
    "`[[alerts]]`": suite.Alert,
    "`[local.NAME]`": suite.LocalPlatform,
}


def written(title):
    """Return key and default of every row in a section of the page."""
    body = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| [^|]*\|$", body, re.MULTILINE))


def shown(field):
    default = field.default
    if default is PydanticUndefined:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, Model):
        return "all defaults"
    return f"`{json.dumps(default)}`"


@pytest.mark.parametrize("title", SECTIONS)
def test_every_key_stands_there_with_its_default(title):
    assert written(title) == {name: shown(field) for name, field in SECTIONS[title].model_fields.items()}


def test_no_model_of_a_suite_is_left_out():
    result, open_models = set(), [Suite]
    while open_models:
        model = open_models.pop()
        result.add(model)
        text = " ".join(str(field.annotation) for field in model.model_fields.values())
        names = set(re.findall(r"plumbline\.schema\.\w+\.(\w+)", text))
        new = {getattr(suite, name, None) or getattr(spec, name) for name in names}
        open_models += [
            item for item in new if isinstance(item, type) and issubclass(item, Model) and item not in result
        ]
    assert result == set(SECTIONS.values())


def test_the_example_is_a_suite_and_every_size_is_named():
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
    assert Suite.model_validate(tomllib.loads(example)).schedule.timezone == "Europe/Berlin"
    for size, (layers, width) in SIZES.items():
        assert re.search(rf"`{size}` \({layers}( layers)?, (width )?{width}\)", PAGE)


@pytest.mark.parametrize(("key", "names"), [("task", TASKS), ("on", EVENTS)])
def test_every_task_and_event_stands_there(key, names):
    row = re.search(rf"^\| `{key}` \|.*$", PAGE, re.MULTILINE)[0]
    assert [name for name in names if f'`"{name}"`' not in row] == []
