"""A spec's kind: an error in it names its own key, and no other kind's."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from plumbline.schema.captured import CapturedSpec
from plumbline.schema.record import RunRecord

SPEC = CapturedSpec(workload="mine", seed=7, steps=20).to_json()


@pytest.mark.parametrize(("change", "key"), [
    ({"steps": 0}, "spec.steps"), ({"workload": "../mine"}, "spec.workload"), ({"more": 1}, "spec.more"),
    ({"kind": "trained"}, "spec.kind"), ({"kind": None}, "spec.kind"),
])  # fmt: skip
def test_an_error_in_a_captured_spec_names_its_key(change: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunRecord.model_validate({"spec": SPEC | change})
    named = {"spec." + str(entry["loc"][2]) for entry in caught.value.errors() if entry["loc"][0] == "spec"}
    assert key in named
    assert named == {key} or change == {"kind": None}
