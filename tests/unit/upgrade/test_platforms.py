"""An upgrade over several platforms: the candidate, what a worker receives, and the sum of the answers."""

from __future__ import annotations

import argparse
import hashlib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from plumbline.environments.changes import PackageChange
from plumbline.environments.locks import LockFiles, Pin, parse_lock
from plumbline.flows.commands import upgrade as command
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Alert, Suite
from plumbline.upgrade.answer import Culprit, UpgradeAnswer
from plumbline.upgrade.orders import PlatformReport, suite_of
from plumbline.upgrade.outcome import alerts_of, headline, platform_outcome, sum_up, summary
from plumbline.upgrade.request import LOCK_FILES_NAME, MAX_INLINE_BYTES, Candidate, read_candidate

TEXT = "numpy==2.4.6\n"
SHA = digest_bytes(TEXT.encode())
CHANGE = PackageChange(package="numpy", current=None, candidate=Pin(name="numpy", version="2.4.6"))


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    place = {"work_pool": "p", "data": f"file://{tmp_path}/data"}
    return Suite.model_validate({
        "name": "nightly", "store": f"file://{tmp_path}/central", "reference": "aws",
        "datasets": {"reviews": {"grammar_seed": 1}, "others": {"grammar_seed": 2}},
        "workloads": {
            name: {"model": "tiny", "data": data, "seed": 7, "batch_size": 8, "probe": {}}
            for name, data in (("small", "reviews"), ("large", "others"))
        },
        "platforms": {
            "aws": {**place, "outbox": f"file://{tmp_path}/aws"},
            "azure": {**place, "outbox": f"file://{tmp_path}/azure", "optional": True},
        },
        "alerts": [Alert(on=("drift", "unavailable"), block="slack-webhook/x")],
        "candidates": [f"file://{tmp_path}/locks", "https://example.com/locks"],
        "schedule": {"cron": "0 2 * * *"},
    })  # fmt: skip


def refuse(url: str, _: int) -> bytes:
    raise AssertionError(f"{url}: nothing is to be downloaded")


def test_a_candidate_by_text_address_and_document(suite: Suite, tmp_path: Path) -> None:
    lock = LockFiles(name="a.txt", files={"a.txt": "-r b.txt\n", "b.txt": TEXT})
    for folder in ("locks/of/team", "central/upgrades/locks"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "lock.txt").write_text(TEXT)
    by_address = Candidate(name="uv.lock", url=f"file://{tmp_path}/locks/of/team/lock.txt", sha256=SHA)
    of_command = Candidate(name="uv.lock", url=f"file://{tmp_path}/central/upgrades/locks/lock.txt", sha256=SHA)
    assert read_candidate(Candidate(text=TEXT), suite, refuse).files == {"requirements.txt": TEXT}
    for candidate in (by_address, of_command):
        assert read_candidate(candidate, suite, refuse) == LockFiles(name="uv.lock", files={"uv.lock": TEXT})
    assert read_candidate(Candidate(name=LOCK_FILES_NAME, text=lock.model_dump_json()), suite, refuse) == lock
    web = Candidate(url="https://example.com/locks/lock.txt", sha256=SHA)
    assert read_candidate(web, suite, lambda *_: TEXT.encode()).files == {"requirements.txt": TEXT}


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Candidate(), "either its text or its url"),
        (Candidate(text=TEXT, sha256="0" * 64), "candidate.sha256: is not the digest"),
        (Candidate(url="https://example.com/locks/lock.txt"), "candidate.sha256: is missing"),
        (Candidate(url="https://example.com/locks/lock.txt", sha256="0" * 64), "candidate.sha256: is not the digest"),
        (Candidate(url="http://example.com/locks/lock.txt", sha256=SHA), "candidate.url: is not below"),
        (Candidate(url="lock.txt", sha256=SHA), "candidate.url: is not below"),
        (Candidate(name=LOCK_FILES_NAME, text="{}"), "candidate: not the document"),
    ],
)
def test_a_candidate_that_is_not_what_was_announced_is_refused(suite: Suite, candidate: Candidate, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_candidate(candidate, suite, lambda *_: TEXT.encode())


@pytest.mark.parametrize(
    "url",
    [
        "file://{0}/central/secrets/nightly/night",
        "file:///etc/passwd",
        "file://{0}/locks",
        "file://{0}/locks/",
        "file://{0}/locks/../central/secrets/nightly/night",
        "file://{0}/locks-of-others/lock.txt",
        "file://{0}/aws/records/x",
        "s3://any-bucket/lock.txt",
        "az://account/container/lock.txt",
        "https://example.com/other/lock.txt",
        "https://example.com/locks/../other/lock.txt",
        "https://example.com/locks/%2e%2e/other/lock.txt",
        "https://example.com.evil/locks/lock.txt",
        "https://169.254.169.254/latest/meta-data",
    ],
)
def test_an_event_reads_only_below_the_addresses_of_the_suite(suite: Suite, tmp_path: Path, url: str) -> None:
    for place in ("central/secrets/nightly/night", "locks-of-others/lock.txt", "aws/records/x"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(TEXT)
    with pytest.raises(ConfigurationError, match=r"candidate\.url: ") as caught:
        read_candidate(Candidate(url=url.format(tmp_path), sha256=SHA), suite, refuse)
    assert caught.value.exit_code == 2


SECRET = "aws_secret_access_key=wJalrXUtnFEMI"


@pytest.mark.parametrize("name", ["requirements.txt", "uv.lock", "conda-lock.yml", "lock-files.json", "pylock.toml"])
@pytest.mark.parametrize(
    "text",
    [
        f"{SECRET}\n",
        f"[default]\n{SECRET}\n",
        f"a: [{SECRET}",
        f'{{"{SECRET}": 1}}',
        f"-e git+https://h/{SECRET}",
        SECRET,
    ],
)
def test_no_error_about_a_strangers_document_shows_its_digest_or_content(
    suite: Suite, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks/credentials").write_text(text)
    url, digest = f"file://{tmp_path}/locks/credentials", hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ConfigurationError) as wrong:
        read_candidate(Candidate(name=name, url=url, sha256="0" * 64), suite, refuse)
    assert digest[:8] not in str(wrong.value)
    with pytest.raises(ConfigurationError) as unparsed:
        parse_lock(read_candidate(Candidate(name=name, url=url, sha256=digest), suite, refuse))
    for error in (wrong, unparsed):
        assert "secret" not in str(error.value)
        assert "wJalr" not in str(error.value)


def test_a_worker_learns_of_its_own_platform_alone(suite: Suite) -> None:
    own = suite_of(suite, "azure", "large")
    assert (list(own.platforms), list(own.workloads), list(own.datasets)) == (["azure"], ["large"], ["others"])
    assert (own.alerts, own.schedule, own.reference) == ((), None, "azure")
    assert own.store == suite.platforms["azure"].outbox
    assert "central" not in own.model_dump_json()


def answer(verdict: str, **more: object) -> PlatformReport:
    found = UpgradeAnswer.model_validate({"verdict": verdict, "changes": (CHANGE,), **more})
    return PlatformReport(record_id="r", platform="p", nonce="n", answer=found)


def failed(code: ExitCode) -> PlatformReport:
    return PlatformReport(record_id="r", platform="p", nonce="n", error="no such file", exit_code=int(code))


DRIFT = answer(
    "drift", culprits=(Culprit(effect="numerics", changes=(CHANGE,), sure="confirmed", sentence="numpy @you"),)
)
UNINSTALLABLE = answer(
    "invalid", culprits=(Culprit(effect="cannot-install", changes=(CHANGE,), sure="confirmed", sentence="no numpy"),)
)


@pytest.mark.parametrize(
    ("aws", "azure", "verdict", "exit_code"),
    [
        (answer("pass"), answer("pass"), "pass", 0),
        (answer("pass"), None, "pass", 0),  # an optional platform without a report
        (None, answer("pass"), "inconclusive", 3),
        (None, None, "inconclusive", 3),
        (answer("pass"), DRIFT, "drift", 1),
        (DRIFT, None, "drift", 1),
        (failed(ExitCode.INCONCLUSIVE), answer("pass"), "inconclusive", 3),
        (failed(ExitCode.USAGE), answer("pass"), "invalid", 2),
        (UNINSTALLABLE, answer("pass"), "invalid", 2),
        (failed(ExitCode.INVALID), UNINSTALLABLE, "invalid", 4),
        (failed(ExitCode.PASS), answer("pass"), "inconclusive", 3),  # a report that says nothing
    ],
)
def test_the_sum_is_the_worst_platform_and_silence_never_passes(
    suite: Suite, aws: PlatformReport | None, azure: PlatformReport | None, verdict: str, exit_code: int
) -> None:
    reports = {"aws": aws, "azure": azure}
    platforms = {name: platform_outcome(one, "no worker online", (), suite, name) for name, one in reports.items()}
    about = {"upgrade": "u", "suite": "nightly", "workload": "small", "candidate": "c", "candidate_sha256": SHA}
    outcome = sum_up(platforms, **about)
    assert (outcome.verdict, outcome.exit_code) == (verdict, exit_code)
    assert outcome.document()["exit_code"] == exit_code
    assert headline(outcome).startswith(f"{verdict}: ")
    alerted = [message.about for message in alerts_of(outcome)]
    assert alerted == [f"nightly/upgrade/{name}" for name, one in platforms.items() if one.verdict != "pass"]
    assert "@you" not in summary(outcome)
    root = ET.fromstring(command._junit(outcome))  # noqa: S314 - written by ourselves
    assert [one.get("name") for one in root] == ["aws", "azure"]
    bad = sum(int(one.get("failures", "0")) + int(one.get("errors", "0")) > 0 for one in root)
    assert bad == sum(one.verdict != "pass" for one in platforms.values())


def test_a_long_lock_travels_by_its_digest(suite: Suite) -> None:
    small = command._candidate(LockFiles(name="uv.lock", files={"uv.lock": TEXT}), suite)
    assert small == {"name": "uv.lock", "text": TEXT, "sha256": SHA}
    for lock in (
        LockFiles(name="uv.lock", files={"uv.lock": "#" * (MAX_INLINE_BYTES + 1)}),
        LockFiles(name="a.txt", files={"a.txt": "-r b.txt\n", "b.txt": TEXT}),
    ):
        sent = command._candidate(lock, suite)
        assert read_candidate(Candidate.model_validate(sent), suite, refuse) == lock


@pytest.mark.parametrize("option", ["--current=x.txt", "--extra=dev", "--pip=--pre"])
def test_what_only_this_machine_can_do_is_refused_with_api(option: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["upgrade", str(tmp_path / "s.toml"), "--candidate", "c.txt", "--api", option])
    with pytest.raises(ConfigurationError, match=f"{option.partition('=')[0]}: is for this machine alone"):
        args.run(args)
