"""Troubles of a platform: each failed workload has at least one, each with its own key."""

from __future__ import annotations

from plumbline.night.alerts.troubles import Trouble, find_troubles, trouble_of
from plumbline.schema.verdict import Cause, CauseCode, Finding, Outcome, PlatformResult


def keys(result: PlatformResult) -> list[str]:
    return [trouble.key for trouble in find_troubles("azure", result)]


def cause(code: CauseCode, workload: str = "") -> Cause:
    return Cause(code=code, sure="likely", why="w", workload=workload)


def finding(check: str, outcome: Outcome, workload: str = "") -> Finding:
    return Finding(check=check, outcome=outcome, workload=workload)


def test_a_key_names_platform_workload_and_cause() -> None:
    assert Trouble("azure", "bert", "loss", "drift").key == "azure/bert/loss"
    assert trouble_of("azure/bert/loss", "drift") == Trouble("azure", "bert", "loss", "drift")
    assert Trouble("azure", "", "loss", "drift").key == "azure/loss"
    assert trouble_of("azure/loss", "drift") == Trouble("azure", "", "loss", "drift")
    assert trouble_of("azure/bert/loss/deep", "drift").what == "loss/deep"


def test_each_cause_is_a_trouble_and_a_changed_environment_alone_is_none() -> None:
    result = PlatformResult(
        verdict="drift",
        workloads={"bert": "drift"},
        causes=(cause("environment", "bert"), cause("loss", "bert"), cause("rng", "bert"), cause("loss", "bert")),
        findings=(finding("probe.loss", "drift", "bert"),),
    )
    assert keys(result) == ["azure/bert/loss", "azure/bert/rng"]
    only = result.replace(causes=(cause("environment", "bert"),))
    assert keys(only) == ["azure/bert/probe.loss"]


def test_without_a_cause_the_first_failed_check_of_the_workload_is_the_trouble() -> None:
    result = PlatformResult(
        verdict="invalid",
        workloads={"bert": "drift", "mlm": "invalid", "gpt": "pass"},
        findings=(
            finding("a", "pass", "bert"),
            finding("b", "drift", "bert"),
            finding("c", "drift", "bert"),
            finding("d", "drift", "mlm"),
            finding("e", "invalid", "mlm"),
            finding("f", "drift", "gpt"),
        ),
    )
    assert keys(result) == ["azure/bert/b", "azure/mlm/e"]
    assert [trouble.event for trouble in find_troubles("azure", result)] == ["drift", "invalid"]


def test_a_workload_that_passes_hides_no_other_workloads_trouble() -> None:
    result = PlatformResult(
        verdict="drift",
        workloads={"bert": "pass", "gpt": "drift", "mlm": "drift"},
        findings=(finding("a", "drift", "bert"), finding("b", "drift", "mlm"), finding("c", "drift", "gpt")),
    )
    assert keys(result) == ["azure/mlm/b", "azure/gpt/c"]


def test_each_workload_has_its_own_causes() -> None:
    result = PlatformResult(
        verdict="drift",
        workloads={"bert": "drift", "mlm": "drift"},
        causes=(cause("data.order", "bert"), cause("rng", "mlm"), cause("loss", "bert")),
    )
    assert keys(result) == ["azure/bert/data.order", "azure/bert/loss", "azure/mlm/rng"]


def test_a_failed_platform_without_findings_is_a_trouble_all_the_same() -> None:
    assert keys(PlatformResult(verdict="drift")) == ["azure/drift"]
    assert keys(PlatformResult(verdict="invalid", workloads={"bert": "invalid"})) == ["azure/invalid"]
    mixed = PlatformResult(verdict="drift", workloads={"bert": "drift"}, findings=(finding("a", "pass", "bert"),))
    assert keys(mixed) == ["azure/drift"]


def test_unjudged_nights_and_improvements_are_troubles_of_the_platform() -> None:
    result = PlatformResult(verdict="pass", unjudged_nights=1, improved=("throughput", "accuracy"))
    assert keys(result) == ["azure/unjudged", "azure/improved-throughput", "azure/improved-accuracy"]
    assert [trouble.event for trouble in find_troubles("azure", result)] == ["unjudged", "improved", "improved"]
