"""What `speed` shows of its settings: windows beside the reference's, and its own checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.schema.verdict import Judgement
from tests.said import said

from .conftest import other_kernel
from .made_records import Content, edit, in_spec, rounded, whole, windows
from .test_withheld import log

Change = Callable[[Content], Any]

FORMULA = [["forward embed", 1e-15], ["forward logits", 2e-15], ["loss loss", 0.0], ["gradient head.weight", 1e-15]]


def checked_speed(*training: Content, ranks: Sequence[Content] = (), **changes: Any) -> Change:
    """Give the record the windows and checks of its speed part, with changes."""

    def change(content: Content) -> None:
        steps = content["spec"]["speed"]["steps"]
        places = zip((0, 204 + steps), training or ({}, {}), strict=True)
        found = [window for step, each in places for window in windows(step, **each)["windows"]]
        checks = {"formula": FORMULA, "repeated": True} | changes
        content["evidence"]["speed"].update(portable={"windows": found, "ranks": list(ranks)}, production=checks)

    return change


def of_speed(judgement: Judgement) -> tuple[list[str], str]:
    return [cause.code for cause in judgement.causes], judgement.first_divergence.at


def test_equal_windows_and_own_checks_pass_on_any_machine_and_say_so() -> None:
    judgement = compare(whole(checked_speed()), rounded(checked_speed()))
    assert judgement.verdict == "pass"
    assert {"speed.portable", "production.equality"} <= {finding.check for finding in judgement.findings}
    assert any("speed (bf16): formulas identical at 2 checkpoints" in said(note.text) for note in judgement.notes)


@pytest.mark.parametrize(
    ("training", "found"),
    [
        ({"outputs": [["embed", "a" * 16], ["head", "d" * 16]]}, (["operator"], "head")),
        ({"loss": "0x1p-2"}, (["loss"], "loss")),
        ({"gradients": [["head.weight", "d" * 16]]}, (["gradient"], "head.weight")),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_a_different_bit_of_a_window_is_named_whatever_the_machine(
    training: Content, found: tuple[list[str], str], behind: bool
) -> None:
    changed = checked_speed(*(({}, training) if behind else (training, training)))
    assert of_speed(compare(whole(checked_speed()), rounded(changed))) == found


def test_a_process_whose_windows_differ_is_named() -> None:
    rank = {"rank": 1, "at": 0, "stage": "forward", "name": "head"}
    judgement = compare(whole(checked_speed()), rounded(checked_speed(ranks=[rank])))
    assert of_speed(judgement) == (["operator"], "head")
    assert said(judgement.causes[0].why).startswith("process 1 of the candidate")


@pytest.mark.parametrize(
    ("key", "error", "found"),
    [
        ("forward embed", 1e-4, (["operator"], "embed")), ("loss loss", 1e-4, (["loss"], "loss")),
        ("gradient head.weight", None, (["gradient"], "head.weight")),
    ],
)  # fmt: skip
def test_a_formula_that_is_not_the_plain_models_needs_no_reference(
    key: str, error: float | None, found: tuple[list[str], str]
) -> None:
    """Both sides have it."""
    wrong = whole(checked_speed(formula=[[name, error if name == key else size] for name, size in FORMULA]))
    judgement = compare(wrong, wrong)
    assert judgement.verdict == "drift"
    assert of_speed(judgement) == found


@pytest.mark.parametrize(("error", "verdict"), [(9e-3, "pass"), (5e-2, "drift"), (None, "drift")])
def test_a_compiled_tensor_is_measured_beside_the_same_without_the_compiler(error: float | None, verdict: str) -> None:
    """A tensor that rounds little by chance is measured by the median."""
    kernels = [
        {"stage": "gradient", "name": name, "error": size, "eager": eager}
        for name, size, eager in (("a", 4e-3, 3e-3), ("b", error, 1e-5), ("c", 4e-3, 4e-3))
    ]
    made = whole(checked_speed(kernels=kernels))
    judgement = compare(made, made)
    assert judgement.verdict == verdict
    assert verdict == "pass" or of_speed(judgement) == (["gradient"], "b")


def test_kernels_that_do_not_repeat_themselves_are_named_where_the_references_do() -> None:
    unsteady = checked_speed(repeated=False, unsteady="head.weight")
    assert of_speed(compare(whole(checked_speed()), whole(unsteady))) == (["nondeterminism"], "head.weight")
    assert compare(whole(unsteady), whole(unsteady)).verdict == "pass"
    numerics = {"speed.compiled": "True"}
    compiled: Change = lambda content: content["fingerprint"]["numerics"].update(numerics)  # noqa: E731
    # As the compiler's atomic additions, whose order is a matter of luck.
    assert compare(whole(checked_speed(), compiled), whole(unsteady, compiled)).verdict == "pass"


def test_a_spec_that_switches_the_windows_of_speed_off_is_noted() -> None:
    lacking: Change = lambda content: content["evidence"]["speed"].update(portable=None, production=None)  # noqa: E731
    off = edit(whole(), in_spec("speed", checks=False), lacking)
    judgement = compare(off, off)
    assert judgement.verdict == "pass"
    (note,) = (note for note in judgement.notes if note.code == "remark")
    assert said(note.text).startswith("the settings of speed are not judged")
    asked = edit(whole(), lacking)
    assert compare(asked, asked).verdict == "inconclusive"


def test_lost_checks_are_inconclusive_unless_the_bits_of_the_training_are_equal() -> None:
    left, right = whole(), whole(apart)
    assert compare(left, left).verdict == "pass"
    assert compare(left, right).verdict == "inconclusive"
    assert any("out of memory" in said(note.text) for note in compare(left, left).notes if note.code == "remark")


def apart(content: Content) -> None:
    """Train with other losses, as behind other kernels."""
    log(content).update(losses=[0.25] * 14)


def ended(**ending: str) -> Change:
    """End the windows of the speed part before the first one."""
    return lambda content: content["evidence"]["speed"].update(portable={"windows": [], **ending})


def test_lost_checks_do_not_hide_what_the_windows_show() -> None:
    """A candidate without memory for its checks has no proofs of speed, either."""

    def lost(content: Content) -> None:
        content["evidence"]["speed"].update(production={"lost": "out of memory"}, proofs=[])

    def unproven(content: Content) -> None:
        content["evidence"]["speed"].update(proofs=[])

    left, wrong = whole(checked_speed()), checked_speed(*([{"loss": "0x1p-2"}] * 2))
    assert of_speed(compare(left, rounded(wrong, lost))) == (["loss"], "loss")
    for judgement in (
        compare(left, rounded(checked_speed(), lost, apart)), compare(left, whole(checked_speed(), unproven)),
        compare(whole(checked_speed(), unproven), whole(checked_speed(), unproven)),
    ):  # fmt: skip
        assert judgement.verdict == "inconclusive"
    assert compare(left, whole(checked_speed(), lost)).verdict == "pass"


COMPILED = in_spec("speed", compile=True)


@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        ({"repeated": None}, in_spec("speed")), ({}, COMPILED),
        ({"formula": FORMULA[:-1]}, in_spec("speed")), ({"formula": FORMULA[1:2]}, in_spec("speed")),
    ],
)  # fmt: skip
def test_a_check_that_is_missing_is_never_a_pass(changes: Content, spec: Change) -> None:
    kernels = [{"stage": "gradient", "name": "head.weight", "error": 4e-3, "eager": 4e-3}]
    has_kernels = {"kernels": kernels} if spec is COMPILED else {}
    left = edit(whole(checked_speed(**has_kernels)), spec)
    assert compare(left, left).verdict == "pass"
    assert compare(left, edit(whole(checked_speed(**changes)), spec)).verdict == "inconclusive"


@pytest.mark.parametrize("distributed", ["ddp", "fsdp"])
def test_a_pass_names_the_kernels_that_were_compared(distributed: str) -> None:
    """Of shards, one process checks the formula without a compiler."""
    kernels = [{"stage": "gradient", "name": "head.weight", "error": 4e-3, "eager": 4e-3}]
    checked = checked_speed(kernels=kernels if distributed == "ddp" else [])
    made = edit(whole(checked), in_spec("speed", compile=True, distributed=distributed))
    (finding,) = (each for each in compare(made, made).findings if each.check == "production.equality")
    assert ("not compiled" in said(finding.detail)) is (distributed == "fsdp")


@pytest.mark.parametrize("release", ["", "9.9"])
def test_windows_that_one_side_lost_prove_nothing(release: str) -> None:
    lost, packages = ended(lost="out of memory"), other_kernel() | ({"packages": {"torch": release}} if release else {})
    for left, right in ((lost, checked_speed()), (checked_speed(), lost)):
        upgraded = rounded(checked_speed(), right, apart, fingerprint=packages)
        assert compare(whole(checked_speed(), left), upgraded).verdict == "inconclusive"


def test_no_version_of_a_package_excuses_a_different_batch() -> None:
    """All tensors are within rounding."""

    sketches = [[name, [1.0] * 8] for name in ("forward head", "gradient head.weight")]

    def fed(digest: str) -> Change:
        def change(content: Content) -> None:
            checked_speed(*([{"sketches": sketches}] * 2))(content)
            for window in content["evidence"]["speed"]["portable"]["windows"]:
                window["fed"] = [["input_ids", digest * 16]]

        return change

    right = rounded(fed("e"), fingerprint=other_kernel() | {"packages": {"torch": "9.9"}})
    assert compare(whole(fed("d")), right).verdict == "drift"


def test_two_numbers_may_round_where_their_draw_without_the_compiler_happens_not_to() -> None:
    kernels = [{"stage": "forward", "name": "logits", "error": 1e-7, "eager": 0.0}]
    made = whole(checked_speed(kernels=kernels))
    assert compare(made, made).verdict == "pass"


def test_a_machine_that_compiles_nothing_lacks_no_kernels() -> None:
    kernels = [{"stage": "gradient", "name": "head.weight", "error": 4e-3, "eager": 4e-3}]
    assert compare(whole(checked_speed(kernels=kernels)), rounded(checked_speed()), throughput=False).verdict == "pass"
