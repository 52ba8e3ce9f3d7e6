"""Platforms with the same drift search side by side, and each names only what its own trials confirm."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest

from plumbline.schema.suite import Gates
from plumbline.stores import open_store
from plumbline.upgrade.gate import Parts, UpgradeGate
from plumbline.upgrade.relay import Relay
from plumbline.upgrade.search_messages import Mailbox, Notice, Question, Reply, Role, SharedCulprits, SharedResult
from plumbline.upgrade.sharing import SharedTrials, Waits
from plumbline.upgrade.trials import Trial
from tests.unit.upgrade.conftest import Machine, changes

NUMERICS = Parts(speed=False, inputs=False)
WAITS = Waits(poll=0.01, role=60.0, reply=60.0, question=120.0)


class SlowMachine(Machine):
    """Trains for a while, and notes when."""

    def __init__(self, rules, seconds=0.05):
        super().__init__(rules)
        self.seconds = seconds
        self.spans = []
        self.hold = lambda: None

    def run(self, trials):
        for trial in trials:
            began = time.monotonic()
            if trial.part == "numerics":
                time.sleep(self.seconds)
                self.hold()
            self.asked.append(trial)
            self.spans.append((began, time.monotonic()))
            yield self.answer(trial)

    @property
    def helped(self):
        return [trial for trial in self.asked if trial.name.startswith("help")]


def drifts_with(*groups):
    return lambda names: "drift" if any(set(group) <= names for group in groups) else "same"


@contextmanager
def relayed(folder, names):
    """Pass messages as the controller does."""
    relay = Relay({name: open_store(f"file://{folder}/{name}") for name in names})
    for name in names:
        relay.start(name, f"{name}-0")
    stop = threading.Event()

    def pass_on():
        while not stop.wait(0.01):
            relay.step()

    thread = threading.Thread(target=pass_on)
    thread.start()
    try:
        yield relay
    finally:
        stop.set()
        thread.join(10)


def judged(folder, machines, count=20, waits=WAITS):
    """Judge on every platform at once, the first of which leads; return the answers and what each said."""
    answers, said = {}, {name: [] for name in machines}

    def judge(name, machine):
        shared = SharedTrials(machine, open_store(f"file://{folder}/{name}"), f"{name}-0", waits=waits)
        shared._say = said[name].append
        gate = UpgradeGate(machine, Gates(), NUMERICS, say=said[name].append, sharing=shared)
        answers[name] = gate.judge(changes(count))

    with relayed(folder, machines) as relay:

        def wait_for_helpers():
            until(lambda: len(relay._groups) != 1 or num_helpers(relay) == len(machines) - 1)

        leader, *others = [threading.Thread(target=judge, args=pair) for pair in machines.items()]
        next(iter(machines.values())).hold = wait_for_helpers
        leader.start()
        until(lambda: relay._groups)
        for thread in others:
            thread.start()
        for thread in (leader, *others):
            thread.join(120)
    return answers, said


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def num_helpers(relay):
    return sum(group.num_helpers for group in list(relay._groups.values()))


def named(answer):
    return {frozenset(change.package for change in one.changes) for one in answer.culprits}


def sets(*groups):
    return {frozenset(group) for group in groups}


@pytest.mark.parametrize("groups", [[["p013"]], [["p001"], ["p016"]], [["p004", "p011"]]])
def test_platforms_with_the_same_drift_train_side_by_side(tmp_path, groups):
    machines = {name: SlowMachine({"numerics": drifts_with(*groups)}) for name in ("aws", "azure", "gcp")}
    answers, said = judged(tmp_path, machines)
    for answer in answers.values():
        assert named(answer) == sets(*groups)
        assert all(one.sure == "confirmed" and one.judgement is not None for one in answer.culprits)
        assert answer.notes == ()
    leader, *helpers = machines
    assert all(machines[name].helped for name in helpers)
    elsewhere = {line.worker for line in answers[leader].trials if line.worker}
    assert elsewhere == set(helpers)
    assert any(f" on {helpers[0]} with " in line for line in said[leader])
    assert any(line.startswith(f"trial for {leader}: numerics with ") for line in said[helpers[0]])
    spans = [span for name in helpers for span in machines[name].spans]
    assert any(a < end and begin < b for a, b in machines[leader].spans for begin, end in spans)


def test_a_helper_saves_the_leader_trials(tmp_path):
    rule = {"numerics": drifts_with(["p055"])}
    alone = UpgradeGate(SlowMachine(rule, seconds=0.0), Gates(), NUMERICS).judge(changes(81))
    machines = {name: SlowMachine(rule) for name in ("aws", "azure", "gcp")}
    judged(tmp_path / "shared", machines, count=81)
    assert len(machines["aws"].asked) < len(alone.trials)


@pytest.mark.parametrize(("aws", "azure"), [("p003", "p017"), ("p019", "p015")])
def test_a_platform_with_a_different_culprit_misleads_no_other(tmp_path, aws, azure):
    machines = {
        "aws": SlowMachine({"numerics": drifts_with([aws])}),
        "azure": SlowMachine({"numerics": drifts_with([azure])}),
    }
    answers, _ = judged(tmp_path, machines)
    assert machines["azure"].helped
    assert named(answers["aws"]) == sets([aws])
    assert named(answers["azure"]) == sets([azure])
    alone = "other platforms answer differently: the culprit was searched here alone"
    assert answers["azure"].notes == (alone,)


def test_platforms_whose_drifts_differ_do_not_search_together(tmp_path):
    machines = {
        "aws": SlowMachine({"numerics": drifts_with(["p003"])}),
        "azure": SlowMachine({"numerics": lambda names: "cannot-train" if "p003" in names else "same"}),
    }
    answers, _ = judged(tmp_path, machines)
    assert [named(answer) for answer in answers.values()] == [sets(["p003"])] * 2
    assert not any(machine.helped for machine in machines.values())


def test_a_helper_that_falls_silent_costs_a_wait_and_nothing_else(tmp_path):
    folder = open_store(f"file://{tmp_path}/azure")
    machine = SlowMachine({"numerics": drifts_with(["p013"])}, seconds=0.05)
    waits = Waits(poll=0.01, role=60.0, reply=0.1, question=1.0)
    with relayed(tmp_path, ["aws", "azure"]) as relay:
        admitted = []
        admit = relay._admit

        def with_a_ghost(member, digest):
            admit(member, digest)
            admitted.append(member.platform)
            if len(admitted) == 1:
                Mailbox(folder, "azure-0", 0).put("open", Notice(baseline=digest))

        relay._admit = with_a_ghost
        machine.hold = lambda: until(lambda: len(admitted) != 1)
        shared = SharedTrials(machine, open_store(f"file://{tmp_path}/aws"), "aws-0", waits=waits)
        answer = UpgradeGate(machine, Gates(), NUMERICS, sharing=shared).judge(changes(20))
    assert named(answer) == sets(["p013"])
    assert admitted == ["aws", "azure"]


def test_without_a_controller_each_platform_searches_alone(tmp_path):
    machine = SlowMachine({"numerics": drifts_with(["p013"])}, seconds=0.0)
    shared = SharedTrials(machine, open_store(f"file://{tmp_path}"), "aws-0", waits=Waits(poll=0.01, role=0.05))
    answer = UpgradeGate(machine, Gates(), NUMERICS, sharing=shared).judge(changes(20))
    assert named(answer) == sets(["p013"])


def test_what_the_leader_claims_is_no_evidence(tmp_path):
    """A leader that names a wrong package is not believed."""
    machine = SlowMachine({"numerics": drifts_with(["p013"])}, seconds=0.0)
    store = open_store(f"file://{tmp_path}")
    mailbox = Mailbox(store, "aws-0", 0)
    rest = tuple(f"p{number:03d}" for number in range(20) if number != 7)
    mailbox.put("role", Role(leader="azure"))
    mailbox.put("found", SharedResult(culprits=(SharedCulprits(items=("p007",)),), rest=rest, num_searched=20))
    shared = SharedTrials(machine, store, "aws-0", waits=WAITS)
    answer = UpgradeGate(machine, Gates(), NUMERICS, sharing=shared).judge(changes(20))
    assert named(answer) == sets(["p013"])
    assert len(answer.notes) == 1


def test_a_question_about_packages_that_the_candidate_does_not_change_is_not_trained(tmp_path):
    machine = SlowMachine({})
    store = open_store(f"file://{tmp_path}")
    mailbox = Mailbox(store, "aws-0", 0)
    mailbox.put("role", Role(leader="azure"))
    mailbox.put("ask-0", Question(items=("evil",), trial=Trial(name="x", part="numerics")))
    mailbox.put("ask-1", Question(items=("p001",), trial=Trial(name="x", part="speed")))
    waits = Waits(poll=0.01, role=1.0, question=0.3)
    shared = SharedTrials(machine, store, "aws-0", waits=waits)
    assert shared.join("0" * 64, {change.package: change for change in changes(3)}) is None
    assert [mailbox.get(Reply, f"answer-{number}").outcome for number in range(2)] == ["lost", "lost"]
    assert machine.asked == []


def test_an_ended_leader_releases_its_helpers(tmp_path):
    with relayed(tmp_path, ["aws", "azure"]) as relay:
        for name in ("aws", "azure"):
            Mailbox(open_store(f"file://{tmp_path}/{name}"), f"{name}-0", 0).put("open", Notice(baseline="0" * 64))
            until(lambda: Mailbox(open_store(f"file://{tmp_path}/{name}"), f"{name}-0", 0).get(Role, "role"))  # noqa: B023
        relay.start("aws", "aws-1")  # the first attempt was lost
        until(lambda: not relay._groups)
    assert Mailbox(open_store(f"file://{tmp_path}/azure"), "azure-0", 0).get(SharedResult, "found") == SharedResult()


def helps(folder, name, waits):
    """Join the search as `name`; return what the platform says, which names the leader that it helps."""
    machine = SlowMachine({"numerics": drifts_with(["p013"])}, seconds=0.0)
    said = []
    shared = SharedTrials(machine, open_store(f"file://{folder}/{name}"), f"{name}-0", say=said.append, waits=waits)
    shared.join("0" * 64, {change.package: change for change in changes(20)})
    return said


def test_a_platform_that_gave_up_waiting_for_the_controller_leads_no_other(tmp_path):
    """The controller was away for longer than a worker waits: its helpers would get no answer."""
    assert helps(tmp_path, "aws", Waits(poll=0.01, role=0.05)) == []
    with relayed(tmp_path, ["aws", "azure"]):
        began = time.monotonic()
        said = helps(tmp_path, "azure", Waits(poll=0.01, role=60.0, question=300.0))
    assert said == []
    assert time.monotonic() - began < 300.0


def test_a_leader_that_gave_up_as_it_was_admitted_releases_its_helpers(tmp_path):
    aws, azure = (Mailbox(open_store(f"file://{tmp_path}/{name}"), f"{name}-0", 0) for name in ("aws", "azure"))
    with relayed(tmp_path, ["aws", "azure"]):
        for mailbox in (aws, azure):
            mailbox.put("open", Notice(baseline="0" * 64))
            until(lambda: mailbox.get(Role, "role"))  # noqa: B023
        assert azure.get(Role, "role") == Role(leader="aws")
        aws.put("left", Role())
        until(lambda: azure.get(SharedResult, "found"), seconds=10.0)
    assert azure.get(SharedResult, "found") == SharedResult()


def test_a_leader_without_a_further_attempt_releases_its_helpers(tmp_path):
    aws, azure = (Mailbox(open_store(f"file://{tmp_path}/{name}"), f"{name}-0", 0) for name in ("aws", "azure"))
    with relayed(tmp_path, ["aws", "azure"]) as relay:
        for mailbox in (aws, azure):
            mailbox.put("open", Notice(baseline="0" * 64))
            until(lambda: mailbox.get(Role, "role"))  # noqa: B023
        relay.end("aws")
        until(lambda: azure.get(SharedResult, "found"), seconds=10.0)
    assert azure.get(SharedResult, "found") == SharedResult()


def test_a_replaced_controller_releases_the_helpers_of_the_one_before(tmp_path):
    mailboxes = {name: Mailbox(open_store(f"file://{tmp_path}/{name}"), f"{name}-0", 0) for name in ("aws", "azure")}
    with relayed(tmp_path, mailboxes):
        for mailbox in mailboxes.values():
            mailbox.put("open", Notice(baseline="0" * 64))
            until(lambda: mailbox.get(Role, "role"))  # noqa: B023
    with relayed(tmp_path, mailboxes):
        until(lambda: mailboxes["azure"].get(SharedResult, "found"), seconds=10.0)
    assert mailboxes["azure"].get(SharedResult, "found") == SharedResult()
