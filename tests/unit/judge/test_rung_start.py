"""Rungs of the model, of the generators, and of the shipped training."""

from __future__ import annotations

import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.model import architecture, other_modules, restructured, weights
from plumbline.judge.rungs.rng import rng, rng_differs
from plumbline.judge.rungs.selfcheck import failed_at, selfcheck
from plumbline.records import LoadedRecord
from tests.said import said

from .rung_records import both, code, generators, parameters, side, why

# The model.


def test_parameters_that_differ_by_name_shape_or_tie_are_named_in_order() -> None:
    plain = side()
    assert both(architecture, plain, plain) == (None, None)
    found, other = both(architecture, plain, side(parameters(head_weight=None)))
    assert said(found.findings[0].detail) == "head.weight is missing"
    assert said(other.findings[0].detail) == "head.weight is additional"
    found, other = both(architecture, plain, side(parameters(layer_linear_weight={"shape": (16, 17)})))
    assert said(found.findings[0].detail) == "layer.linear.weight is [16, 17] instead of [16, 16]"
    tied = side(parameters(head_weight={"tied_to": "embed.weight"}))
    found, other = both(architecture, plain, tied)
    assert said(found.findings[0].detail) == "head.weight is tied to embed.weight, not nothing"
    assert said(other.findings[0].detail) == "head.weight is tied to nothing, not embed.weight"
    assert restructured(Pair(plain, tied)) == restructured(Pair(tied, plain)) == {"head.weight", "embed.weight"}
    assert both(restructured, tied, tied) == (frozenset(), frozenset())
    many = side(
        parameters(head_weight=None, embed_weight={"shape": (3, 16)}, a=None, b={}, c={}, d={}),
        lambda c: c["evidence"]["model"].update(modules=[("embed", "Other()"), ("x", "X()")]),
    )
    found, _ = both(architecture, plain, many)
    assert found.findings[0].observed == 5
    assert said(found.findings[0].detail).count(";") == 3
    nothing = side(lambda c: c["evidence"].update(model=None))
    for rung in (architecture, weights):
        assert both(rung, nothing, many) == (None, None)
    assert both(restructured, nothing, many) == (frozenset(), frozenset())


@pytest.mark.parametrize(("head", "codes"), [({}, []), ({"sha256": "f" * 64}, ["weights.init"])])
def test_a_tie_changes_the_values_of_both_parameters(head: dict[str, str], codes: list[str]) -> None:
    same = {"sha256": "e" * 64}
    tied = parameters(
        embed_weight=same | {"tied_to": "layer.linear.weight"}, layer_linear_weight=same, head_weight=head
    )
    found, _ = both(architecture, side(), side(tied))
    assert found.at.at == "embed.weight"
    values = weights(Pair(side(), side(tied)))
    assert ([values.suspicions[0].code] if values else []) == codes


def test_modules_are_listed_by_what_differs() -> None:
    models = [side(modules=modules).record.evidence.model for modules in ({}, {"layer.norm": "LayerNorm(eps=1e-05)"})]
    left, right = models
    assert left is not None
    assert right is not None
    assert other_modules(left, right) == [("layer.norm", "layer.norm: LayerNorm() → LayerNorm(eps=1e-05)")]
    fewer = right.replace(modules=right.modules[:1] + right.modules[2:])
    assert said(other_modules(left, fewer)) == [
        ("layer.norm", "layer.norm: LayerNorm() → LayerNorm(eps=1e-05)"),
        ("layer.linear", "module layer.linear is missing"),
    ]
    assert said(other_modules(fewer, left)[1]) == ("layer.linear", "module layer.linear is additional")


def test_initial_values_are_counted_over_equally_named_and_shaped_parameters() -> None:
    plain, changed = side(), {"sha256": "e" * 64}
    found, _ = both(weights, plain, side(parameters(layer_linear_weight=changed, head_weight=changed)))
    assert why(found) == "2 of 3 parameters start from different values"
    assert found.at.at == "layer.linear.weight"
    # A format comes before values; a different shape is the architecture's.
    typed = changed | {"dtype": "bfloat16"}
    found, other = both(weights, plain, side(parameters(embed_weight=changed, head_weight=typed)))
    assert (why(found), code(found)) == ("parameters are stored in bfloat16 instead of float32", "precision")
    assert why(other) == "parameters are stored in float32 instead of bfloat16"
    assert said(found.suspicions[0].evidence) == ("1 of 3 parameters",)
    shaped = parameters(embed_weight=changed | {"shape": (2, 3)}, layer_linear_weight=changed)
    found, _ = both(weights, plain, side(shaped))
    assert why(found) == "1 of 2 parameters start from different values"
    assert both(weights, plain, side(parameters(head_weight=None))) == (None, None)


# The generators.


@pytest.mark.parametrize("step", [0, 1, 4])
def test_generators_are_named_with_the_step_that_changed_them(step: int) -> None:
    plain = side(generators(step, python="a", numpy="b", torch="c", cuda="d"))
    assert both(rng, plain, plain, step) == (None, None)
    found, _ = both(rng, plain, side(generators(step, python="a", numpy="f", torch="e")), step)
    since = "from the start: a different seed" if step == 0 else f"since step {step - 1}: different random draws there"
    assert why(found) == f"the state of numpy, torch differs {since}"
    assert (found.basis == "given") is (step == 0)
    assert rng_differs(Pair(plain, side(generators(step, extra="a"))), step) == ()


# The shipped training.


def test_a_failed_selfcheck_names_its_machine() -> None:
    def checked(verdict: str, at: str) -> LoadedRecord:
        return side(lambda c: c["evidence"].update(selfcheck={"verdict": verdict, "at": at}))

    failed, passed, unknown = checked("drift", "loss of step 0"), checked("pass", ""), checked("unknown", "x")
    assert [failed_at(each) for each in (failed, passed, unknown, side())] == ["loss of step 0", None, None, None]
    found = selfcheck(failed)
    assert found is not None
    assert found[1].sure == "confirmed"
    assert selfcheck(passed) is selfcheck(unknown) is selfcheck(side()) is None
