"""A suite is written by a person: every slip gets one line with the file, the key and the mend."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from plumbline.errors import ConfigurationError, ExitCode
from plumbline.rounds.plan import MAIN, RERUN, Round
from plumbline.schema.base import first_problem
from plumbline.schema.suite import Suite, read_suite

SUITE = """
name = "nightly"
store = "file://central"
reference = "aws"

[workloads.reviews]
model = "tiny"
data = "reviews"
seed = 7
batch_size = 8
[workloads.reviews.probe]
steps = 5

[platforms.aws]
work_pool = "aws-gpu"
data = "s3://data/plumbline"
outbox = "s3://outbox/plumbline"

[gates]
throughput_drop = 0.05
"""


def write(tmp_path, text):
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return path


def test_the_short_suite_of_the_design_is_read(tmp_path):
    suite = read_suite(write(tmp_path, SUITE))
    assert suite.workloads["reviews"].probe.steps == 5
    assert suite.platforms["aws"].outbox == "s3://outbox/plumbline"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "nightly"', 'name = "nightly"\ntypo = 1', "typo"),
        ('store = "file://central"\n', "", "store"),
        ('store = "file', 'stoer = "file', "stoer"),
        ("throughput_drop = 0.05", "throughput_drop = -0.05", "gates.throughput_drop"),
        ("throughput_drop = 0.05", "throughput_drop = nan", "gates.throughput_drop"),
        ('data = "s3://data/plumbline"', 'data = "ftp://data"', "platforms.aws.data"),
        ('data = "s3://data/plumbline"', 'data = "s3://key:secret@data"', "platforms.aws.data"),
        ("steps = 5", "steps = 0", "workloads.reviews.probe.steps"),
        ("[workloads.reviews.probe]\nsteps = 5\n", "", "workloads.reviews"),
        ('reference = "aws"', 'reference = "mars"', ""),
    ],
)
def test_a_slip_is_named_with_file_and_key(tmp_path, old, new, key):
    assert old in SUITE
    with pytest.raises(ConfigurationError) as refused:
        read_suite(write(tmp_path, SUITE.replace(old, new)))
    assert refused.value.key == key
    assert "suite.toml" in str(refused.value)
    assert refused.value.exit_code == ExitCode.USAGE


def named(platforms, workloads, part="probe"):
    """The suite with these platforms and workloads."""
    suite = tomllib.loads(SUITE)
    platform, workload = suite["platforms"]["aws"], suite["workloads"]["reviews"]
    workload = {**{key: workload[key] for key in ("model", "data", "seed", "batch_size")}, part: {"steps": 10}}
    return {
        **suite,
        "reference": platforms[0],
        "platforms": dict.fromkeys(platforms, platform),
        "workloads": dict.fromkeys(workloads, workload),
    }


@pytest.mark.parametrize(
    ("names", "first", "second", "name"),
    [
        (
            (["aws", "aws-speed"], ["speed-bert", "bert"]),
            "workload 'speed-bert' on platform 'aws'",
            "workload 'bert' on platform 'aws-speed'",
            "aws-speed-bert",
        ),
        (
            (["aws"], ["bert", "bert-rerun"], "speed"),
            "the rerun of workload 'bert' on platform 'aws'",
            "workload 'bert-rerun' on platform 'aws'",
            "aws-bert-rerun",
        ),
    ],
)
def test_two_trainings_of_one_name_are_refused(names, first, second, name):
    with pytest.raises(ValidationError) as refused:
        Suite.model_validate(named(*names))
    line = f"{first} and {second} would both be called '{name}': rename one of them"
    assert line in first_problem(refused.value)[1]


def test_every_training_of_a_round_has_a_name_of_its_own():
    suite = Suite.model_validate(named(["aws", "aws-speed"], ["bert", "bert-large", "rerun-bert"], "speed"))
    this = Round("20261120-020000-7f3a", suite, dict.fromkeys(suite.workloads))
    trainings = [replace(one, what=what) for one in this.assignments() for what in (MAIN, RERUN)]
    assert len({this.job(one).key for one in trainings}) == len(trainings) == 12
    # Without a speed part there is no rerun whose name it could take.
    assert Suite.model_validate(named(["aws"], ["bert", "bert-rerun"]))


def test_a_secret_in_a_url_is_not_repeated(tmp_path):
    with pytest.raises(ConfigurationError) as refused:
        read_suite(write(tmp_path, SUITE.replace("s3://data/plumbline", "s3://data/x?sig=hunter2")))
    assert "hunter2" not in str(refused.value)


def test_neither_a_missing_file_nor_broken_toml_is_a_traceback(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_suite(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match="not TOML"):
        read_suite(write(tmp_path, "name = "))


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[3] / "deployments/suites").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_suites_that_we_ship_are_read(path):
    suite = read_suite(path)
    assert {workload.data for workload in suite.workloads.values()} <= set(suite.datasets)
    for platform in suite.local.values():
        scripts = [part.format(python="", data="", root=path.parents[2]) for part in platform.prepare if ".py" in part]
        assert all(Path(script).is_file() for script in scripts)
