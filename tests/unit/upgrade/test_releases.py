"""Search over a culprit's releases, in real wheels of a local index: one of them cannot be built, one was reverted."""

from __future__ import annotations

import pytest

from bench.upgrade.wheels import broken_sdist
from plumbline.environments.changes import PackageChange, pins_between
from plumbline.environments.installer import Installer
from plumbline.environments.locks import Pin
from plumbline.environments.package_store import PackageStore
from plumbline.environments.virtual_environments import Environments
from plumbline.schema.suite import Gates
from plumbline.upgrade.answer import TrialResult
from plumbline.upgrade.gate import Parts, UpgradeGate, UpgradeOptions
from plumbline.upgrade.machine import LocalTrials
from plumbline.upgrade.search import range_sentence, search_releases
from tests.unit.upgrade.conftest import change, drift
from tests.unit.upgrade.wheels import write_wheel

pytestmark = pytest.mark.long

VERSIONS = ("1.0", "1.1", "1.2", "1.4", "1.5", "1.6", "1.10")
OLD = Pin(name="demo-guilty", version="1.0")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return a store of packages over an index; pip installs each release once for all tests."""
    folder = tmp_path_factory.mktemp("releases")
    index = folder / "index"
    for version in VERSIONS:
        requires = ["demo-absent"] if version == "1.4" else []
        write_wheel(index, "demo-guilty", version, {"demo_guilty.py": f"VERSION = {version!r}\n"}, requires)
    write_wheel(index, "demo-other", "2.0", {"demo_other.py": ""})
    broken_sdist(index, "demo-guilty", "1.3")
    store = PackageStore(
        folder / "store", Installer("pip", ("--no-index", f"--find-links={index}")), allows_unhashed=True
    )
    assert store.add([OLD]) == ()
    return store


class Indexed:
    """Trials whose environments are real; a training drifts if the release in its environment is among `drifting`."""

    def __init__(self, folder, store, drifting):
        self.store, self.drifting = store, drifting
        environments = Environments(folder / "environments", store, {OLD.name: store.read(OLD)})
        self.local = LocalTrials(None, "x", folder, environments, store)
        self.tried = []

    def run(self, trial):
        if trial.part in ("environment", "releases"):
            return self.local.run(trial)
        assert self.store.add(one.candidate for one in trial.changes if one.candidate) == ()
        built = self.local.environments.build(trial.changes)
        code = next(built.folder.glob("lib/*/site-packages/demo_guilty.py")).read_text()
        self.tried += [one.candidate.version for one in trial.changes if one.package == "demo-guilty"]
        outcome = "drift" if code.split("'")[1] in self.drifting else "same"
        opened = ("demo-guilty", "demo-other")
        judgement = drift() if outcome == "drift" else None
        return TrialResult(trial=trial.name, outcome=outcome, judgement=judgement, opened=opened)


def judged(machine, *, releases=True, trials=200):
    changes = (change("demo-guilty", "1.0", "1.10"), change("demo-other", None, "2.0"))
    parts = Parts(probe=True, learn=False, speed=False, inputs=False)
    options = UpgradeOptions(trials=trials, releases=releases)
    return UpgradeGate(machine, Gates(), parts, options).judge(changes)


def test_the_first_release_with_the_effect_is_named_and_others_that_cannot_be_tried_are_skipped(tmp_path, store):
    machine = Indexed(tmp_path, store, {"1.5", "1.6", "1.10"})
    (culprit,) = judged(machine).culprits
    assert culprit.changes[0].package == "demo-guilty"
    found = culprit.releases
    assert (found.without, found.with_effect, found.unknown) == ("1.2", "1.5", ("1.3", "1.4"))
    assert culprit.sentence.endswith(
        "of its releases, demo-guilty 1.5 has this effect, 1.2 does not, and 1.3, 1.4 could not be tried"
    )


def test_an_effect_that_was_reverted_and_came_back_gives_a_true_pair(tmp_path, store):
    machine = Indexed(tmp_path, store, {"1.1", "1.2", "1.6", "1.10"})
    (culprit,) = judged(machine).culprits
    assert (culprit.releases.without, culprit.releases.with_effect) in {("1.0", "1.1"), ("1.5", "1.6")}
    assert {culprit.releases.without, culprit.releases.with_effect} - {"1.0", "1.10"} <= set(machine.tried)


def test_the_culprit_stays_named_without_the_option_and_without_budget(tmp_path, store):
    machine = Indexed(tmp_path, store, {"1.5", "1.6", "1.10"})
    plain = judged(machine, releases=False)
    assert plain.culprits[0].releases is None
    num_trials = len(plain.trials)
    for more in (0, 1, 3):
        answer = judged(machine, trials=num_trials + more)
        assert [one.package for one in answer.culprits[0].changes] == ["demo-guilty"]
        assert (answer.verdict, answer.culprits[0].sure) == ("drift", "confirmed")
        assert len(answer.trials) <= num_trials + more
    assert (answer.culprits[0].releases.num_tried, len(answer.culprits[0].releases.unknown)) == (2, 6)


@pytest.mark.parametrize(
    ("current", "candidate", "expected"),
    [
        ("1.0", "1.5", ["1.1", "1.2", "1.4"]),
        ("1.5", "1.1", ["1.4", "1.2"]),
        ("1.0+cpu", "1.2", ["1.1"]),
        ("1.2+cpu", "1.0", ["1.1"]),
        ("1.6", "1.10", []),
        ("nightly", "1.0", []),
    ],
)
def test_releases_lie_between_both_pins_in_the_order_of_the_change(current, candidate, expected):
    pins = pins_between(change("demo", current, candidate), (*VERSIONS, "1.0", "nightly"))
    assert [pin.version for pin in pins] == expected


def test_what_has_no_releases_is_not_searched():
    for one in (change("demo", None, "2.0"), change("demo", "1.0", None)):
        assert pins_between(one, VERSIONS) == ()
    url = PackageChange(
        package="demo", current=Pin(name="demo", version="1"), candidate=Pin(name="demo", url="https://x/y")
    )
    assert pins_between(url, VERSIONS) == ()
    assert search_releases(change("demo"), (), lambda _: "fails") is None


def test_bisecting_asks_about_log2_of_the_releases():
    pins = tuple(Pin(name="demo", version=f"1.{number}") for number in range(1, 100))
    asked = []

    def ask(pin):
        asked.append(pin.version)
        return "fails" if int(pin.version[2:]) >= 70 else "passes"

    found = search_releases(change("demo", "1.0", "1.100"), pins, ask)
    assert (found.without, found.with_effect, found.unknown) == ("1.69", "1.70", ())
    assert found.num_tried == len(asked) <= 7
    assert range_sentence("demo", found) == "of its releases, demo 1.70 has this effect, 1.69 does not"
    assert search_releases(change("demo"), pins, lambda _: None).num_tried == 0
    unknown = search_releases(change("demo", "1.0", "1.100"), pins[:5], lambda _: "unknown")
    assert range_sentence("demo", unknown).endswith("and 1.1, 1.2, 1.3 and 2 more could not be tried")
