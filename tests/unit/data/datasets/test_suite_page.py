"""The suite's JSON Schema, of which docs/SUITE.md is made: each key says what it means, and names its choices."""

from __future__ import annotations

from plumbline.data.datasets.spec import SIZES
from plumbline.schema.alert_event import EVENTS
from plumbline.schema.json_schema import suite_schema
from plumbline.schema.task import TASKS

SCHEMA = suite_schema()


def test_every_key_says_what_it_means():
    models = {"Suite": SCHEMA, **SCHEMA["$defs"]}
    keys = {(name, key): field for name, model in models.items() for key, field in model["properties"].items()}
    assert len(keys) > 100
    # These mean in `speed` and `learn` what they mean in `probe`.
    repeated = {(part, key) for part in ("SpeedSpec", "LearnSpec") for key in ("precision", "attention", "dropout")}
    assert {key for key, field in keys.items() if not field.get("description")} <= repeated


def test_every_size_task_and_event_is_named():
    places = SCHEMA["$defs"]
    sizes = " ".join(places["Workload"]["properties"]["model"]["description"].split())
    assert [size for size, (layers, width) in SIZES.items() if f"`{size}` ({layers}, {width})" not in sizes] == []
    assert places["Workload"]["properties"]["task"]["enum"] == list(TASKS)
    assert places["Alert"]["properties"]["on"]["items"]["enum"] == list(EVENTS)
