"""Modules of the clouds: minimal rights, filled-in files, and machines that are on for a round alone."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from plumbline.cli.new_suite import NewPlatform
from tests.shipped import PARAMETER, aws_policy, azure_actions, document, google_grants
from tests.unit.infra.pins import pins

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"


@pytest.mark.parametrize("path", sorted(INFRA.glob("*/*policy.json")), ids=lambda path: path.stem)
def test_policies_of_aws_delete_nothing_and_name_their_buckets(path):
    policy = document(f"aws/{path.name}", password_parameter=PARAMETER)
    assert policy["Version"] == "2012-10-17"
    for statement in policy["Statement"]:
        if path.stem.endswith("bucket-policy"):
            assert statement["Effect"] == "Deny"
            assert statement["Condition"]
            continue
        assert statement["Effect"] == "Allow"
        assert not [action for action in statement["Action"] if "*" in action or "Delete" in action]
        resources = statement["Resource"]
        other = {"ssm:GetParameter": PARAMETER, "autoscaling:SetDesiredCapacity": "machines"}
        other["autoscaling:TerminateInstanceInAutoScalingGroup"] = "machines"  # a machine ends itself
        if (action := statement["Action"][0]) in other or action.startswith("autoscaling:Describe"):
            assert resources == other.get(action, "*")
            continue
        for resource in [resources] if isinstance(resources, str) else resources:
            assert re.fullmatch(r"arn:aws:s3:::[a-z]+_bucket(/prefix/([a-z]+/)?\*)?", resource)
            assert ("/prefix/" in resource) != (statement["Action"] == ["s3:ListBucket"])


def test_a_worker_cannot_write_where_its_data_lies():
    policy = aws_policy("worker")
    writing = [item["Resource"] for item in policy["Statement"] if "s3:PutObject" in item["Action"]]
    places = ("records", "checkpoints", "doctor")
    assert writing == [[f"arn:aws:s3:::outbox_bucket/prefix/{place}/*" for place in places]]
    for store in ("data", "central"):
        assert not [action for action in azure_actions("worker", store) if not action.endswith("/read")]
        for allowed, _ in google_grants("worker", store):
            assert allowed <= {"storage.objects.get", "storage.objects.list"}
    assert not [action for action in azure_actions("worker", "outbox") if "delete" in action or action.endswith("*")]
    whole = {name for allowed, prefix in google_grants("worker", "outbox") if not prefix for name in allowed}
    assert whole == {f"storage.objects.{what}" for what in ("create", "get", "list")}


READMES = [path for path in sorted(INFRA.rglob("*.md")) if "node_modules" not in path.parts]


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.parent.name)
def test_the_readmes_name_files_that_exist(path):
    for name in re.findall(r"infra/[a-z0-9-]+/[\w.-]+\.\w+", path.read_text()):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
def test_the_outputs_of_a_module_are_a_platform_of_a_new_suite(cloud):
    text = (INFRA / cloud / "outputs.tf").read_text()
    values = re.search(r'^output "platform" \{\n.*?  value = \{\n(.*?)^  }', text, re.MULTILINE | re.DOTALL)[1]
    own = list(NewPlatform.model_fields) if cloud != "gcp" else [*NewPlatform.model_fields][:-1]
    assert re.findall(r"^    (\w+) +=", values, re.MULTILINE) == own


def test_server_and_workers_of_the_cluster_have_the_lock_s_prefect():
    (version,) = re.findall(r'prefect = "([\d.]+)"', (INFRA / "control" / "main.tf").read_text())
    assert version == pins("controller")["prefect"]


def test_each_row_of_the_clouds_is_asserted_and_planted():
    """A row that nothing plants would be a check that cannot fail."""
    rows = re.findall(r"^\| `(\w+)` \|", (INFRA / "CLOUDS.md").read_text(), re.MULTILINE)
    (listed,) = re.findall(
        r"^ROWS: .*?= \((.*?)\)", (INFRA / "check/resolved.py").read_text(), re.MULTILINE | re.DOTALL
    )
    planted = tomllib.loads((INFRA / "check" / "planted.toml").read_text())["errors"]
    assert rows == re.findall(r"\w+", listed)
    assert set(rows) <= {word.removesuffix(": ") for *_, word in planted}
    for name, _, path, old, *_ in planted:
        assert old in (ROOT / path).read_text(), name


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.parametrize("case", ["tutorial", "without Google"])
def test_the_engine_applies_the_modules(case):
    """`make infra-check` runs the other cases, plans again, and destroys."""
    command = [sys.executable, "infra/check", ".venv/infra-tools", case]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_road_to_three_clouds_takes_ten_values_and_six_commands():
    text = (INFRA / "three-clouds" / "variables.tf").read_text()
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^}', text, re.MULTILINE | re.DOTALL)
    page = (ROOT / "docs" / "tutorials" / "clouds.md").read_text()
    (values,) = re.findall(r"^```hcl\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    named = re.findall(r"^(\w+) += ", values, re.MULTILINE)
    assert set(named) == {name for name, body in blocks if "default" not in body}
    # The tenth is the address of the webhook.
    assert len(named) == 9
    (commands,) = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(commands.splitlines()) == 6
