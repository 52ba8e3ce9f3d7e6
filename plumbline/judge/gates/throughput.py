"""Throughput gate: compare one number per run with the platform's baseline."""

from __future__ import annotations

import math

from plumbline.judge.gates.gate import GateRequest, GateResult
from plumbline.judge.gates.throughput_causes import (
    Named,
    explained_by_load,
    foreign_load,
    lacks_cores,
    lost_share,
    speed_cause,
)
from plumbline.judge.history.metrics import software_key
from plumbline.judge.pair import Pair
from plumbline.judge.statistics.distributions import MEDIAN_ERROR, QUARTILES
from plumbline.judge.suspects import differences, suspects_for
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Divergence, Finding, Judgement, Outcome

CHECK = "speed.throughput"


def needs_rerun(judgement: Judgement) -> bool:
    """Return whether a finding needs an independent rerun as confirmation."""
    return any(finding.needs_rerun for finding in judgement.findings)


def noise_of(speed: SpeedEvidence) -> float:
    """Return the relative standard error of a run's median step time."""
    if not speed.step_seconds_quartiles or not speed.step_seconds or speed.steps < 1:
        return 0.0
    low, high = speed.step_seconds_quartiles
    spread = max(high - low, 0.0) / QUARTILES
    return MEDIAN_ERROR * spread / speed.step_seconds / math.sqrt(speed.steps)


def throughput_gate(pair: Pair, request: GateRequest) -> GateResult:
    """Judge the throughput run, if the request asks for this gate and no nights decide."""
    if not request.throughput or request.nights.own_throughput:
        return GateResult()
    demanded = request.throughput == "demanded"
    findings, causes = speed(pair, request.gates, confirms=request.confirms, demanded=demanded)
    at = Divergence(stage="throughput", part="speed", at="throughput") if causes else None
    return GateResult(tuple(findings), tuple(causes), at)


def speed(
    pair: Pair, gates: Gates, *, confirms: SpeedEvidence | None = None, demanded: bool = False
) -> tuple[list[Finding], list[Cause]]:
    """Return the throughput finding, and the cause of a confirmed drop.

    `confirms` is the independent rerun of a run that was too slow: a drop is drift only if both runs show it. A pair
    whose throughput cannot be compared has no finding unless `demanded`: silence would look like a pass.
    """
    hindrance = _hindrance(pair)
    left, right = pair.reference.record.evidence.speed, pair.candidate.record.evidence.speed
    if hindrance or left is None or right is None:
        return [_finding(None, gates, "inconclusive", hindrance)] if demanded else [], []
    drop, unlike = lost_share(left, right), _unlike_machines(pair)
    if drop is None or unlike:
        return [_finding(None, gates, "inconclusive", unlike or fact("throughput.none"))], []
    numbers = fact(
        "throughput.rates",
        rate=right.samples_per_second,
        baseline=left.samples_per_second,
    )
    if drop <= gates.throughput_drop:
        return [_finding(drop, gates, "pass", numbers)], []
    if confirms is None:
        why = _named(pair, right)[1]
        detail = fact("throughput.unconfirmed", numbers=numbers, why=why)
        return [_finding(drop, gates, "inconclusive", detail).replace(needs_rerun=True)], []
    return _rerun(pair, (left, right, confirms), gates)


def _hindrance(pair: Pair) -> Statement:
    """Return why the two throughputs cannot be compared, or ""."""
    sides = {"reference": pair.reference.record, "candidate": pair.candidate.record}
    if sides["reference"].platform != sides["candidate"].platform:
        return fact("throughput.different-platform")
    without = [side for side, record in sides.items() if record.evidence.speed is None]
    return fact("throughput.no-part", sides=" and the ".join(without)) if without else ""


def _unlike_machines(pair: Pair) -> Statement:
    """Return why two hardware classes cannot be compared; empty if equal."""
    before, after = (side.record.fingerprint.hardware_class for side in (pair.reference, pair.candidate))
    if before == after:
        return ""
    return fact("throughput.machine-classes", before=before, after=after)


def _rerun(
    pair: Pair, runs: tuple[SpeedEvidence, SpeedEvidence, SpeedEvidence], gates: Gates
) -> tuple[list[Finding], list[Cause]]:
    """Confirm or refute the first run's throughput drop by a rerun."""
    left, right, confirms = runs
    cores = pair.candidate.record.fingerprint.cpu.num_cores
    drop, again = lost_share(left, right), lost_share(left, confirms)
    if drop is None or again is None:
        return [_finding(drop, gates, "inconclusive", fact("throughput.rerun-has-none"))], []
    if again <= gates.throughput_drop:
        return [_finding(again, gates, "pass", fact("throughput.refuted", drop=drop))], []
    error = math.hypot(noise_of(left), math.hypot(noise_of(right), noise_of(confirms)) / 2)
    if (drop + again) / 2 <= gates.throughput_standard_errors * error:
        detail = fact("throughput.within-spread", numbers=fact("throughput.lost-twice", drop=drop, again=again))
        return [_finding(min(drop, again), gates, "inconclusive", detail)], []
    named = _named(pair, right), _named(pair, confirms)
    numbers = fact("throughput.lost-twice", drop=drop, again=again)
    others = (*foreign_load(left, right, cores), *foreign_load(left, confirms, cores))
    is_clear = named[0][0] is not None and named[0][0] == named[1][0]
    if not is_clear and others and _is_excused(left, (right, confirms), gates, cores):
        detail = fact("throughput.not-quiet", numbers=numbers, load=others[0])
        return [_finding(min(drop, again), gates, "inconclusive", detail)], []
    if others:
        share = max(explained_by_load(left, run, cores) for run in (right, confirms))
        numbers = fact("throughput.load-explains", numbers=numbers, share=share, load=others[0])
    return [_finding(min(drop, again), gates, "drift", numbers)], [_cause(pair, *named)]


def _named(pair: Pair, run: SpeedEvidence) -> Named:
    """Return the cause of a slowdown that one run's measurements suggest."""
    before, after = pair.reference.record, pair.candidate.record
    if before.evidence.speed is None:
        return None, fact("throughput.none"), ()
    code, why, evidence = speed_cause(before.evidence.speed, run, after.fingerprint.cpu.num_cores)
    if code == "software" and software_key(before.fingerprint) == software_key(after.fingerprint):
        return None, fact("throughput.same-software", why=why), evidence
    return code, why, evidence


def _cause(pair: Pair, first: Named, second: Named) -> Cause:
    """Return the likely cause of a slowdown, if both runs agree."""
    code, why, evidence = first
    found = differences(pair.reference.record.fingerprint, pair.candidate.record.fingerprint)
    if code is not None and code == second[0]:
        tried = (fact("rerun.equally-slow"),)
        return Cause(
            code=code, sure="likely", why=why, evidence=evidence, suspects=suspects_for(code, found), tried=tried
        )
    if first[:2] != second[:2]:
        why = fact("throughput.no-single-cause")
    return Cause(
        code="unattributed", sure="unattributed", why=why, evidence=(*evidence, *second[2]),
        suspects=suspects_for("software", found),
    )  # fmt: skip


def _is_excused(left: SpeedEvidence, runs: tuple[SpeedEvidence, SpeedEvidence], gates: Gates, num_cores: int) -> bool:
    """Return whether load from other processes explains the drop."""
    if any(lacks_cores(left, run, num_cores) for run in runs):
        return True
    kept = [((1 - (lost_share(left, run) or 0.0)), 1 - explained_by_load(left, run, num_cores)) for run in runs]
    return any(share >= (1 - gates.throughput_drop) * left_over for share, left_over in kept)


def _finding(drop: float | None, gates: Gates, outcome: Outcome, detail: Statement) -> Finding:
    return Finding(
        check=CHECK,
        outcome=outcome,
        metric=fact("throughput.drop"),
        observed=drop,
        limit=gates.throughput_drop,
        unit="relative",
        detail=detail,
    )
