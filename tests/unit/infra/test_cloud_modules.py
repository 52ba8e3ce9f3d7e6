"""Modules of the clouds: minimal rights, filled-in files, and machines that are on for a round alone."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from plumbline.cli.new_suite import NewPlatform
from tests.shipped import PARAMETER, aws_policy, azure_actions, document, google_grants, resources
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


@pytest.mark.parametrize("path", sorted(INFRA.glob("*/trust*.json")), ids=lambda path: path.stem)
def test_roles_are_taken_only_under_a_condition(path):
    for statement in document(f"aws/{path.name}")["Statement"]:
        assert statement["Condition"]
        assert statement["Principal"] != "*"


@pytest.mark.parametrize("path", sorted(INFRA.rglob("*.md")), ids=lambda path: path.parent.name)
def test_the_readmes_name_files_that_exist(path):
    if "node_modules" not in path.parts:
        for name in re.findall(r"infra/[a-z0-9-]+/[\w.-]+\.\w+", path.read_text()):
            assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp", "control", "three-clouds"])
def test_a_module_gives_each_of_its_files_its_values_and_uses_each_file(cloud):
    """OpenTofu finds both only when it is applied."""
    text = "".join(path.read_text() for path in sorted((INFRA / cloud).glob("*.tf")))
    named = re.findall(r'(?:templatefile|file)\("\$\{path\.module}/([^"]+)"', text)
    for name in named:
        path = (INFRA / cloud / name).resolve()
        assert path.is_file(), name
        places = set(re.findall(r"\$\{(\w+)}", path.read_text()))
        if f'templatefile("${{path.module}}/{name}"' in text:
            assert {place for place in places if not re.search(rf"^\s*{place}\s+= ", text, re.MULTILINE)} <= {
                # Of an object that the root fills in.
                *re.findall(r"^ {4}(\w+) += string$", text, re.MULTILINE)
            }, name
    own = {path.name for kind in ("*.json", "*.yaml") for path in (INFRA / cloud).glob(kind)}
    assert own - {Path(name).name for name in named} <= {"server.schema.json", "worker.schema.json"}


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
def test_the_outputs_of_a_module_are_a_platform_of_a_new_suite(cloud):
    text = (INFRA / cloud / "outputs.tf").read_text()
    values = re.search(r'^output "platform" \{\n.*?  value = \{\n(.*?)^  }', text, re.MULTILINE | re.DOTALL)[1]
    own = list(NewPlatform.model_fields) if cloud != "gcp" else [*NewPlatform.model_fields][:-1]
    assert re.findall(r"^    (\w+) +=", values, re.MULTILINE) == own


def test_server_and_workers_of_the_cluster_have_the_lock_s_prefect():
    (version,) = re.findall(r'prefect = "([\d.]+)"', (INFRA / "control" / "main.tf").read_text())
    assert version == pins("controller")["prefect"]


def test_no_machine_is_on_but_for_a_round():
    assert resources("aws", "aws_autoscaling_group")["worker"]["min_size"] == "0"
    assert resources("aws", "aws_autoscaling_group")["worker"]["desired_capacity"] == "0"
    assert resources("azure", "azurerm_linux_virtual_machine_scale_set")["worker"]["instances"] == "0"
    text = (INFRA / "gcp" / "cluster.tf").read_text()
    assert "total_min_node_count = 0" in text


def test_each_row_about_the_clouds_has_its_check_and_a_planted_error():
    """`make infra-check` runs the checks: its parser is not a package of this environment."""
    page = (INFRA / "CLOUDS.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    tree = ast.parse((INFRA / "check" / "clouds.py").read_text())
    (listed,) = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.target.id == "ROWS"]
    assert rows == [item.id for item in listed.elts]
    planted = tomllib.loads((INFRA / "check" / "clouds.toml").read_text())["error"]
    assert {error["row"] for error in planted} == set(rows)
    for error in planted:
        assert error["old"] in (ROOT / error["path"]).read_text(), error["name"]


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


def test_each_row_of_the_clouds_is_written_down_checked_and_planted():
    """A row that nothing plants would be a check that cannot fail."""
    written = re.findall(r"^\| `(\w+)` \|", (INFRA / "CLOUDS.md").read_text(), re.MULTILINE)
    (rows,) = re.findall(r"^ROWS: .*?= \((.*?)\)", (INFRA / "check/clouds.py").read_text(), re.MULTILINE | re.DOTALL)
    planted = {error["row"] for error in tomllib.loads((INFRA / "check/clouds.toml").read_text())["error"]}
    assert set(written) == set(re.findall(r"\w+", rows)) == planted
    assert len(written) == len(set(written))
