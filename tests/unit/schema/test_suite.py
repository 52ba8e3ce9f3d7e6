"""A suite is written by a person: every slip gets one line with the file, the key and the mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import read_suite

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
