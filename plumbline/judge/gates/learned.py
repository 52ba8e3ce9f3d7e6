"""Gate of learning: an accuracy that is not above chance shows no drift."""

from __future__ import annotations

import math

from plumbline.judge.gates.gate import GateRequest, GateResult
from plumbline.judge.pair import Pair
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Finding


def learned_gate(pair: Pair, request: GateRequest) -> GateResult:
    """Find a candidate whose final accuracy is not above the most frequent label's by more than its noise.

    Two models that have learned nothing agree whatever differs between them, so that their accuracies prove nothing.
    """
    record = pair.candidate.record
    curve, spec = record.evidence.learn, record.spec.learn
    accuracy = curve.evaluations[-1].accuracy if curve is not None and curve.evaluations else None
    if curve is None or accuracy is None or spec is None or spec.expect == "chance" or record.experiment is not None:
        return GateResult()
    limit = None
    if curve.chance is None:
        detail = fact("learned.no-chance")
    else:
        noise = math.sqrt(curve.chance * (1 - curve.chance) / max(curve.evaluations[-1].num_rows, 1))
        limit = curve.chance + request.gates.accuracy_standard_errors * noise
        if accuracy > limit:
            return GateResult()
        detail = fact("learned.nothing", accuracy=accuracy, chance=curve.chance)
        if curve.num_predicted == 1:
            detail = fact("learned.constant", accuracy=accuracy, chance=curve.chance)
    finding = Finding(
        check="learn.learned", outcome="inconclusive", metric=fact("learned.accuracy"), observed=accuracy, limit=limit,
        unit="absolute", detail=detail,
    )  # fmt: skip
    return GateResult((finding,))
