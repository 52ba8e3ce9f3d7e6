"""Suite files: every mistake gives one line with file, key and hint."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from plumbline.night.rounds.plan import MAIN, RERUN, Round
from plumbline.schema import suite_file
from plumbline.schema.base import first_problem
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, Workload, read_suite, read_workloads

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


VALID = "Input should be a valid"
SPEED = "steps = 5\n[workloads.reviews.speed]\n"
REFUSED = [
    ('name = "nightly"', 'name = "nightly"\ntypo = 1', "typo", "unknown key"),
    ('store = "file://central"\n', "", "store", "missing"),
    ('store = "file', 'stoer = "file', "stoer", "unknown key; did you mean `store`?"),
    ("reference =", "refrence =", "refrence", "unknown key; did you mean `reference`?"),
    ("batch_size", "batchsize", "workloads.reviews.batchsize", "unknown key; did you mean `batch_size`?"),
    ("work_pool", "workpool", "platforms.aws.workpool", "unknown key; did you mean `work_pool`?"),
    ("throughput_drop = 0.05", "throughput_drop = -0.05", "gates.throughput_drop", "greater than 0"),
    ("throughput_drop = 0.05", "throughput_drop = nan", "gates.throughput_drop", "finite number"),
    ('data = "s3://data/plumbline"', 'data = "ftp://data"', "platforms.aws.data", "platforms.aws.data: "),
    ('data = "s3://data/plumbline"', 'data = "s3://key:hunter2@data"', "platforms.aws.data", "platforms.aws.data: "),
    ('data = "s3://data/plumbline"', 'data = "s3://data/x?sig=hunter2"', "platforms.aws.data", "platforms.aws.data: "),
    ("steps = 5", "steps = 0", "workloads.reviews.probe.steps", "greater than or equal to 1"),
    ("[workloads.reviews.probe]\nsteps = 5\n", "", "workloads.reviews", "workloads.reviews: "),
    ('reference = "aws"', 'reference = "mars"', "", "reference names 'mars', which is not a platform"),
    ('reference = "aws"', 'reference = "asw"', "", "which is not a platform of this suite; did you mean `aws`?"),
    # A value of a different type is no value.
    ("seed = 7", "seed = true", "workloads.reviews.seed", VALID),
    ("batch_size = 8", 'batch_size = "8"', "workloads.reviews.batch_size", VALID),
    ("batch_size = 8", "batch_size = 8\nsequence_length = 16.0", "workloads.reviews.sequence_length", VALID),
    ("steps = 5", 'steps = "5"', "workloads.reviews.probe.steps", VALID),
    ("steps = 5", "steps = 5\ntap_steps = [true]", "workloads.reviews.probe.tap_steps.0", VALID),
    ("steps = 5", "steps = 5\ntap_steps = 1", "workloads.reviews.probe.tap_steps", f"{VALID} list"),
    ("steps = 5", f'{SPEED}compile = "yes"', "workloads.reviews.speed.compile", VALID),
    ("steps = 5", f"{SPEED}compile = 1", "workloads.reviews.speed.compile", VALID),
    ('work_pool = "aws-gpu"', 'work_pool = "aws-gpu"\nretries = "2"', "platforms.aws.retries", VALID),
    ("throughput_drop = 0.05", 'throughput_drop = "0.05"', "gates.throughput_drop", VALID),
    ("throughput_drop = 0.05", "accuracy_margin = true", "gates.accuracy_margin", VALID),
    ("[gates]\nthroughput_drop = 0.05", "[schedule]\ncron = 2026-11-20", "schedule.cron", VALID),
]


@pytest.mark.parametrize(("old", "new", "key", "words"), REFUSED, ids=[repr(new[-40:]) for _, new, *_ in REFUSED])
def test_a_slip_is_named_with_file_and_key(tmp_path, old, new, key, words):
    assert old in SUITE
    with pytest.raises(ConfigurationError, match=re.escape(words)) as refused:
        read_suite(write(tmp_path, SUITE.replace(old, new, 1)))
    assert refused.value.key == key
    assert "suite.toml" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.exit_code == ExitCode.USAGE


def test_a_whole_number_is_a_number_and_every_list_is_read(tmp_path):
    more = """
[schedule]
cron = "0 2 * * *"
grace_seconds = 60
[[alerts]]
on = ["drift", "missed"]
block = "slack-webhook/team"
[local.aws]
prepare = ["true", "{data}"]
[workloads.reviews.optimizer]
betas = [0, 0.99]
"""
    suite = read_suite(write(tmp_path, SUITE.replace("steps = 5", "steps = 5\ntap_steps = [0, 4]") + more))
    assert suite.schedule.grace_seconds == 60.0
    assert suite.alerts[0].on == ("drift", "missed")
    assert suite.local["aws"].prepare == ("true", "{data}")
    assert suite.workloads["reviews"].optimizer.betas == (0.0, 0.99)
    assert suite.workloads["reviews"].probe.tap_steps == (0, 4)


def test_what_was_read_goes_through_json_and_back(tmp_path):
    suite = read_suite(write(tmp_path, SUITE))
    assert Suite.model_validate(suite.to_json()) == suite
    assert Suite.model_validate_json(json.dumps(suite.to_json())) == suite


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "[platforms.aws]",
            "[workloads.reviews.optimizer]\naccumulation_steps = 3\n[platforms.aws]",
            "workloads.reviews.optimizer.accumulation_steps: 3 does not divide batch_size, 8",
        ),
        (
            "steps = 5",
            "steps = 5\ntap_steps = [0, 5]",
            "workloads.reviews.probe.tap_steps: 5 is not a step of the probe: its steps are 0 to 4",
        ),
        (
            "steps = 5",
            "steps = 5\ntap_steps = [-1]",
            "workloads.reviews.probe.tap_steps: -1 is not a step of the probe",
        ),
        (
            "[gates]",
            '[schedule]\ncron = "0 2 * * *"\ntimezone = "Mars/Base"\n[gates]',
            "schedule.timezone: 'Mars/Base' is not a time zone: use an IANA name",
        ),
        (
            "[gates]",
            '[schedule]\ncron = "0 2 * * *"\ntimezone = "../zone"\n[gates]',
            "schedule.timezone: '../zone' is not a time zone: use an IANA name",
        ),
        *(
            ('work_pool = "aws-gpu"', f'work_pool = "aws-gpu"\n{new}', f"platforms.aws.{line}")
            for new, line in (
                (
                    'workloads = ["review"]',
                    "workloads: 'review' is not a workload of this suite; did you mean `reviews`?",
                ),
                ("workloads = []", "workloads: Tuple should have at least 1 item"),
                ("job_variables = {gpus = 2}", "job_variables: gpus: set the platform's own key `gpus`"),
                ('job_variables = {command = "sh"}', "job_variables: command: a deployment decides what a worker runs"),
                ("job_variables = {env = {A = 1}}", "job_variables: env: is a table of texts"),
                ("job_variables = {a = [2026-11-26]}", "job_variables: a: is a date or time: write it as text"),
                ("job_variables = {a = {b = nan}}", "job_variables: a: nan is not a number of JSON"),
                ('machines = "aws://gpus"', "machines: is not a group of machines: aws://REGION/AUTO-SCALING-GROUP"),
                (
                    'machines = "vm://a/b"',
                    "machines: is not a group of machines: aws://REGION/AUTO-SCALING-GROUP or azure:",
                ),
                ("concurrency = 0", "concurrency: Input should be greater than or equal to 1"),
                ('queue = "A 10"', "queue: String should match pattern"),
                ('api = "prefect"', "api: is not a web address"),
            )
        ),
        ("[gates]", '[[alerts]]\non = ["left-on"]\nblock = "a/b"\n[gates]', "alerts: 'left-on' is about the groups"),
        (
            '"s3://data/plumbline"',
            '"file://cen\\u0000tral"',
            "platforms.aws.data: contains a control character",
        ),
        ('"file://central"', '"file://cen\\ntral"', "store: 'file://cen\\ntral' contains a control character"),
        ("seed = 7", f"seed = {'9' * 5000}", "suite.toml: seed: a number too long to read"),
        ("seed = 7", f"seed = 0x{'f' * 5000}", "workloads.reviews.seed: Input should be less than"),
        ("seed = 7", f"seed = {'[' * 5000}", "suite.toml: seed: nested too deep"),
        ("seed = 7", f"seed.{'a.' * 5000}b = 1", "suite.toml: nested too deep"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_meant_is_one_line(tmp_path, old, new, line):
    assert old in SUITE
    with pytest.raises(ConfigurationError) as refused:
        read_suite(write(tmp_path, SUITE.replace(old, new)))
    said = str(refused.value)
    assert line in said
    assert "Value error" not in said
    assert len(said.splitlines()) == 1
    assert refused.value.exit_code == ExitCode.USAGE


def test_the_reference_trains_every_workload(tmp_path):
    text = SUITE.replace('work_pool = "aws-gpu"', 'work_pool = "aws-gpu"\nworkloads = ["reviews"]')
    assert list(read_suite(write(tmp_path, text)).workloads_of("aws")) == ["reviews"]
    recipe = 'model = "tiny"\ndata = "reviews"\nseed = 7\nbatch_size = 8\n[workloads.more.probe]\n'
    second = text.replace("[platforms.aws]", f"[workloads.more]\n{recipe}[platforms.aws]")
    with pytest.raises(
        ConfigurationError, match=r"platforms.aws.workloads: aws is the reference, and does not train more"
    ):
        read_suite(write(tmp_path, second))


def test_a_machine_without_time_zones_doubts_none(tmp_path, monkeypatch):
    monkeypatch.setattr(suite_file, "available_timezones", set)
    scheduled = SUITE + '[schedule]\ncron = "0 2 * * *"\ntimezone = "Mars/Base"\n'
    assert read_suite(write(tmp_path, scheduled)).schedule.timezone == "Mars/Base"


@pytest.mark.parametrize(
    ("cron", "wrong"),
    [
        ("0 0 2 * * *", "'0 0 2 * * *' has 6 fields instead of five: minute, hour, day, month and weekday"),
        ("@daily", "has 1 field instead of five"), ("", "has 0 fields instead of five"),
        ("0 25 * * *", "hour 25 is not in 0 to 23"), ("*/90 2 * * 1-9", "weekday 9 is not in 0 to 7"),
        ("*/5 2,4 L * MON#2", ""),
    ],
)  # fmt: skip
def test_a_cron_of_other_than_five_fields_or_of_numbers_that_no_clock_shows_is_refused(tmp_path, cron, wrong):
    path = write(tmp_path, SUITE + f'[schedule]\ncron = "{cron}"\n')
    if not wrong:
        assert read_suite(path).schedule.cron == cron
        return
    with pytest.raises(ConfigurationError, match=re.escape(wrong)):
        read_suite(path)


def named(platforms, workloads, part="probe"):
    """Return a suite with these platforms and workloads."""
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
    line = f"{first} and {second} would have the same name '{name}': rename one of them"
    assert line in first_problem(refused.value)[1]


def test_every_training_of_a_round_has_a_name_of_its_own():
    suite = Suite.model_validate(named(["aws", "aws-speed"], ["bert", "bert-large", "rerun-bert"], "speed"))
    round_ = Round("20261120-020000-7f3a", suite, dict.fromkeys(suite.workloads))
    trainings = [replace(assignment, what=what) for assignment in round_.assignments() for what in (MAIN, RERUN)]
    assert len({round_.job(training).key for training in trainings}) == len(trainings) == 12
    # Without a speed part there is no rerun whose name it could take.
    assert Suite.model_validate(named(["aws"], ["bert", "bert-rerun"]))


def test_two_apis_whose_keys_would_have_one_variable_are_refused():
    """The key of one API would be sent to the other."""
    content = named(["eu-west", "eu.west"], ["bert"], "probe")
    one, two = ({"api": f"https://{host}.example.org/api"} for host in ("one", "two"))
    platforms = content["platforms"]
    shared = {name: platform | one for name, platform in platforms.items()}
    assert Suite.model_validate({**content, "platforms": shared})
    content["platforms"] = {"eu-west": platforms["eu-west"] | one, "eu.west": platforms["eu.west"] | two}
    with pytest.raises(ValidationError) as refused:
        Suite.model_validate(content)
    assert first_problem(refused.value)[1] == (
        "platforms 'eu-west' and 'eu.west' would have one variable for the keys of two APIs, "
        "PLUMBLINE_API_KEY_EU_WEST: rename one of them"
    )


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


def test_every_missing_key_is_named_at_once(tmp_path):
    path = tmp_path / "suite.toml"
    path.write_text('[workloads.w]\nmodel = "tiny"\ndata = "reviews"\nprobe = {}\n[platforms.aws]\nwork_pool = "a"\n')
    with pytest.raises(ConfigurationError) as caught:
        read_suite(path)
    missing = ["name", "store", "reference", "workloads.w.seed", "workloads.w.batch_size", "platforms.aws.data"]
    assert caught.value.key == ", ".join([*missing, "platforms.aws.outbox"])
    assert caught.value.what == "missing"


def test_a_spec_needs_workloads_and_datasets_alone(tmp_path):
    """A colleague without a server was asked for a reference, pools and outboxes, one missing key after the other."""
    path = tmp_path / "suite.toml"
    workload = 'model = "tiny"\ndata = "reviews"\nseed = 7\nbatch_size = 8\nprobe = { steps = 2 }\n'
    path.write_text(f'[datasets.reviews]\npath = "a.csv"\n[workloads.w]\n{workload}[platforms.aws]\n')
    assert read_workloads(path).workloads["w"].seed == 7
    for wrong, message in (
        (f"[workload.w]\n{workload}", r"workload: unknown key; did you mean `workloads`\?"),
        (f"[workloads.w]\n{workload}optimizer = {{ accumulation_steps = 3 }}\n", "3 does not divide batch_size, 8"),
        (
            f'[workloads.w]\n{workload}speed = {{ padding = "packed" }}\n',
            r'w.speed.padding: .* need task = "masked-lm"',
        ),
        ("", "workloads: missing"),
        *(
            (f"[workloads.w]\n{workload}speed = {{ {keys} }}\n", f"w.speed: {message}")
            for keys, message in (
                ("foreach_optimizer = true", "foreach_optimizer and fused_optimizer exclude each other"),
                ('compile_mode = "max-autotune"', "compile_mode needs compile = true"),
                ('optimizer = "adafactor"', "optimizer: adafactor has no fused kernel: set fused_optimizer = false"),
                ('padding = "packed", compile = true', "padding: .*set compile = false"),
                ('distributed = "fsdp", ddp_bucket_mb = 50', "distributed: .* are DistributedDataParallel's"),
                ('attention = "flash_attention_2", precision = "fp32"', "attention: .* in bf16 or fp16, not in fp32"),
            )
        ),
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigurationError, match=message):
            read_workloads(path)


SECOND = """
[platforms.azure]
work_pool = "azure-gpu"
data = "s3://data/plumbline"
outbox = "{outbox}"
"""


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ("s3://outbox/plumbline", "s3://outbox/plumbline", "is the same place as the outbox of aws"),
        ("s3://outbox/plumbline", "s3://outbox//plumbline//", "is the same place as the outbox of aws"),
        ("s3://outbox/plumbline", "s3://outbox/plumbline/azure", "is inside the outbox of aws"),
        ("s3://outbox/plumbline", "s3://outbox", "contains the outbox of aws"),
        ("az://acme/outbox/a", "az://acme/outbox", "contains the outbox of aws"),
        ("file:///srv/outbox", "file:///srv/x/../outbox/", "is the same place as the outbox of aws"),
        ("file:///srv/outbox", "file://central", "is the same place as the central store"),
        ("file:///srv/outbox", "file://./central/records", "is inside the central store"),
        ("file:///srv/outbox", "file://.", "contains the central store"),
        ("s3://outbox/plumbline", "s3://outbox/plumbline-azure", ""),
        ("s3://outbox/plumbline", "gs://outbox/plumbline", ""),
        ("az://acme/outbox", "az://acme/outbox-2", ""),
        ("file:///srv/outbox", "file:///srv/outbox2", ""),
    ],
)
def test_an_outbox_that_is_a_different_platforms_or_the_central_store_is_refused(tmp_path, first, second, place):
    """Its worker could write under the other's record ids, or into the controller's own records."""
    text = SUITE.replace("s3://outbox/plumbline", first) + SECOND.format(outbox=second)
    if not place:
        assert read_suite(write(tmp_path, text)).platforms["azure"].outbox == second
        return
    with pytest.raises(ConfigurationError) as refused:
        read_suite(write(tmp_path, text))
    assert refused.value.key == "platforms.azure.outbox"
    assert refused.value.what == f"{place}: give each platform an outbox of its own"


def test_a_link_to_a_different_outbox_is_refused_once_folders_are_resolved(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    text = SUITE.replace("s3://outbox/plumbline", f"file://{tmp_path}/real") + SECOND.format(outbox="file://link")
    suite = read_suite(write(tmp_path, text))
    with pytest.raises(ConfigurationError, match=r"azure\.outbox: is the same place as the outbox of aws"):
        suite.with_absolute_urls(tmp_path)


@pytest.mark.parametrize("data", ["s3://outbox/plumbline", "s3://outbox/plumbline/data"])
def test_data_that_a_different_platforms_workers_could_replace_are_refused(tmp_path, data):
    text = SUITE + SECOND.format(outbox="s3://outbox-azure").replace("s3://data/plumbline", data)
    with pytest.raises(ConfigurationError, match=r"platforms.azure.data: is .* the outbox of aws, whose workers could"):
        read_suite(write(tmp_path, text))


@pytest.mark.parametrize("value", ["cpu\\u001b[2J", "cpu\\u0000", "cpu\\u009b"])
def test_a_control_character_is_refused_in_any_text(tmp_path, value):
    text = SUITE + SECOND.format(outbox="s3://outbox-azure") + f'accelerator = "{value}"\n'
    with pytest.raises(ConfigurationError, match=r"platforms.azure.accelerator: contains a control character"):
        read_suite(write(tmp_path, text))


@pytest.mark.parametrize(
    ("model", "chosen", "rate", "warmup_steps"),
    [
        ("tiny", {}, 1e-3, 2),
        ("medium", {}, 5e-4, 2),
        ("base", {}, 1e-4, 40),
        ("a/checkpoint", {}, 5e-5, 40),
        ("base", {"optimizer": {"learning_rate": 0.3}, "schedule": {"warmup_steps": 7}}, 0.3, 7),
    ],
)
def test_a_rate_that_nobody_chose_follows_from_the_size(model, chosen, rate, warmup_steps):
    content = {"model": model, "data": "rows", "seed": 1, "batch_size": 8, "learn": {"steps": 400}, **chosen}
    made = Workload.model_validate(content)
    assert (made.optimizer.learning_rate, made.schedule.warmup_steps) == (rate, warmup_steps)
    assert Workload.model_validate(made.to_json()) == made


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_suite_that_windows_saved_is_read_with_either_line_end_of_its_lock(tmp_path: Path, encoding: str) -> None:
    lock = "torch==2.6.0\nnumpy==1.26.4\n"
    text = SUITE.replace("[platforms.aws]", '[platforms.aws]\nlock = "lock.txt"', 1)
    digests = set()
    for line_end in ("\n", "\r\n"):
        (tmp_path / "lock.txt").write_bytes(lock.replace("\n", line_end).encode())
        (tmp_path / "suite.toml").write_bytes(text.replace("\n", line_end).encode(encoding))
        digests.add(read_suite(tmp_path / "suite.toml").platforms["aws"].lock)
    assert digests == {hashlib.sha256(lock.encode()).hexdigest()}


def test_a_persons_text_is_opened_by_one_function() -> None:
    """`decoded` knows byte order marks; a suite read beside it did not."""
    root = Path(__file__).parents[3] / "plumbline"
    parts = ("cli/calibrate.py", "schema/suite_file.py", "upgrade/request.py", "data/datasets/streams.py")
    for path in [*(root / part for part in parts), *(root / "environments/locks").glob("*.py")]:
        assert not re.search(r"\.read_text\(|\.decode\(", path.read_text("utf-8")), path
