"""`compare` names the broken rung, and accepts rounding differences."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from plumbline.digest import digest_json
from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.data import data
from plumbline.judge.rungs.model import architecture, weights
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Judgement

from .conftest import EVALUATION_ROWS, ROWS, STEPS, Plan, make_record, other_kernel
from .kept_verdicts import kept

architecture = kept(architecture)
batch = kept(batch)
compare = kept(compare)
data = kept(data)
weights = kept(weights)


def judge(reference: LoadedRecord, **changes: Any) -> Judgement:
    return compare(reference, make_record(**changes))


def codes(judgement: Judgement) -> list[str]:
    return [cause.code for cause in judgement.causes]


def _tied(head_sha256: str | None) -> LoadedRecord:
    """Return a record whose `embed.weight` is tied to `layer.linear.weight`."""
    made = make_record()
    content = made.record.model_dump()
    model = content["evidence"]["model"]
    model["parameters"] = list(model["parameters"])
    for parameter in model["parameters"]:
        if parameter["name"] == "embed.weight":
            parameter |= {"tied_to": "layer.linear.weight", "sha256": "e" * 64}
        if parameter["name"] == "layer.linear.weight":
            parameter |= {"sha256": "e" * 64}
        if parameter["name"] == "head.weight" and head_sha256:
            parameter |= {"sha256": head_sha256}
    model |= {"weights_sha256": "e" * 64, "architecture_sha256": "e" * 64}
    return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)


@pytest.mark.parametrize(("head_sha256", "expected"), [(None, []), ("f" * 64, ["weights.init"])])
def test_a_tie_changes_the_values_of_both_parameters(
    reference: LoadedRecord, head_sha256: str | None, expected: list[str]
) -> None:
    pair = Pair(reference, _tied(head_sha256))
    tied, values = architecture(pair), weights(pair)
    assert tied is not None
    assert tied.at.at == "embed.weight"
    assert ([values.suspicions[0].code] if values else []) == expected


def test_equal_records_pass_and_say_so(reference: LoadedRecord) -> None:
    judgement = judge(reference)
    assert judgement.verdict == "pass"
    assert judgement.first_divergence is None
    assert judgement.causes == ()
    assert [note.code for note in judgement.notes] == ["equal-bits"]


def test_rounding_of_another_kernel_passes_with_a_note(reference: LoadedRecord) -> None:
    judgement = judge(reference, noise={"layer.linear": 3e-7}, fingerprint=other_kernel())
    assert judgement.verdict == "pass"
    assert any(note.code == "rounding" and "AVX512" in note.text for note in judgement.notes)


def test_rounding_that_nothing_explains_is_a_kernel_never_an_operator(reference: LoadedRecord) -> None:
    judgement = judge(reference, noise={"layer.linear": 3e-7})
    assert judgement.verdict == "drift"
    assert codes(judgement) == ["kernel"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.at == "layer.linear"


@pytest.mark.parametrize("row", [0, 9, 23])
def test_one_edited_text_is_found_with_shard_and_row(reference: LoadedRecord, row: int) -> None:
    plan = Plan()
    plan.texts[row] += 500
    judgement = compare(reference, make_record(plan))
    assert codes(judgement) == ["data.content"]
    place = judgement.first_divergence
    assert place is not None
    assert (place.row, place.step, place.at) == (row, row // 4, f"shard train/{row // 8}.parquet row {row % 8}")


def _half_read(rows_of_dataset: list[int]) -> LoadedRecord:
    """Return a record of a run that reads 120 of 240 rows."""
    made = make_record()
    data = made.record.evidence.data
    assert data is not None
    shards = [{**shard.to_json(), "num_rows": shard.num_rows * 10} for shard in data.shards[:3]]
    read = np.arange(240)[::2]
    texts = np.array(rows_of_dataset, np.uint64)[read]
    rows = {"row_id": read, "text": texts, "label": texts % 2}
    content = data.replace(
        shards=shards,
        num_rows=120,
        rows_sha256=digest_json(texts.tolist()),
        manifest_sha256=digest_json(texts.tolist()),
    )
    evidence = made.record.evidence.replace(data=content.to_json())
    record = made.record.replace(evidence=evidence.to_json())
    return LoadedRecord(record, made.folder, made.arrays | {"rows": rows})


def _texts(change: str) -> list[int]:
    """Return 240 changed rows; the first 30, read by the probe, are unchanged."""
    rows = list(range(1000, 1240))
    if change in ("permuted", "half permuted", "quarter permuted"):
        moved = {"permuted": 240, "half permuted": 200, "quarter permuted": 110}[change]
        mixed = random.Random(5).sample(rows[30:moved], moved - 30)
        edited = [text + 5000 for text in rows[moved:]] if change != "permuted" else []
        return [*rows[:30], *mixed, *edited]
    if change == "copied":
        return [*rows[:120], *rows[:120]]
    return [*rows[:30], *(text + 5000 for text in rows[30:])]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("permuted", "data.order"), ("half permuted", "data.order"), ("quarter permuted", "data.content"),
        ("copied", "data.content"), ("edited", "data.content"),
    ],
)  # fmt: skip
def test_rows_that_moved_among_those_read_are_an_order_and_copies_are_content(change: str, code: str) -> None:
    """Of a dataset that is read in part, some moved rows come from places that nobody read."""
    left, right = (_half_read(texts) for texts in (list(range(1000, 1240)), _texts(change)))
    assert [item.suspicions[0].code for item in data(Pair(left, right))] == [code]


@pytest.mark.parametrize(("num_moved", "code"), [(8, "data.order"), (6, "data.content")])
def test_few_moved_rows_are_no_order(num_moved: int, code: str) -> None:
    """Below four expected rows chance decides how many of them are found."""
    rows = list(range(1000, 1240))
    places = [*range(30, 30 + 2 * num_moved, 2)]
    moved = list(rows)
    for place, source in zip(places, [*places[1:], 101], strict=True):
        moved[place] = rows[source]
    result = data(Pair(*(_half_read(texts) for texts in (rows, moved))))
    assert [item.suspicions[0].code for item in result] == [code]


@pytest.mark.parametrize(("with_labels", "code"), [(True, "data.order"), (False, "data.content")])
def test_texts_that_move_without_their_labels_are_different_rows(with_labels: bool, code: str) -> None:
    """Chance gives half of the moved texts their own label again."""
    left, right = (_half_read(list(range(1000, 1240))) for _ in range(2))
    labels = np.random.default_rng(1).integers(0, 2, 120).astype(np.uint64)
    left.rows["label"] = labels
    right.rows["text"] = np.roll(left.rows["text"], 1)
    right.rows["label"] = np.roll(labels, 1) if with_labels else labels.copy()
    right.rows["text"][::9] += 5000  # some rows come from places that the reference did not read
    changed = right.record.evidence.data.replace(rows_sha256="f" * 64)
    evidence = right.record.evidence.replace(data=changed.to_json())
    right = LoadedRecord(right.record.replace(evidence=evidence.to_json()), right.folder, right.arrays)
    assert [item.suspicions[0].code for item in data(Pair(left, right))] == [code]


@pytest.mark.parametrize(("places", "code"), [([0, 2], "rng"), ([0, 1], "data.labels")])
def test_labels_of_other_places_are_another_draw_of_the_mask(places: list[int], code: str) -> None:
    def masked(places: list[int], value: int) -> LoadedRecord:
        made = make_record()
        labels = np.full((STEPS, 4, 8), -100)
        labels[:, :, places] = value
        made.arrays["batches"]["labels"] = labels
        content = made.record.model_dump()
        content["spec"]["task"] = "masked-lm"
        content["spec"]["model"]["num_labels"] = None
        for step in content["evidence"]["probe"]["steps"]:
            step["batch"]["labels"] = digest_json([places, value])
        return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)

    result = batch(Pair(masked([0, 1], 5), masked(places, 6)), 0, frozenset())
    assert result is not None
    assert result.suspicions[0].code == code
    assert result.suspicions[0].names[-1] == "labels"


@pytest.mark.parametrize("row", [0, 13, ROWS + EVALUATION_ROWS - 1])
def test_one_edited_label_is_found_with_its_row(reference: LoadedRecord, row: int) -> None:
    plan = Plan()
    plan.labels[row] = 1 - plan.labels[row]
    judgement = compare(reference, make_record(plan))
    assert codes(judgement) == ["data.labels"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.row == row


def test_the_same_rows_in_another_place_are_an_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[2], plan.texts[9] = plan.texts[9], plan.texts[2]
    plan.labels[2], plan.labels[9] = plan.labels[9], plan.labels[2]
    assert codes(compare(reference, make_record(plan))) == ["data.order"]


def test_a_row_that_is_gone_is_content(reference: LoadedRecord) -> None:
    plan = Plan(order=list(range(ROWS - 1)))
    del plan.texts[5], plan.labels[5]
    assert codes(compare(reference, make_record(plan))) == ["data.content"]


def test_another_shuffle_is_an_order(reference: LoadedRecord) -> None:
    order = list(range(ROWS))
    random.Random(1).shuffle(order)
    judgement = judge(reference, order=order)
    assert codes(judgement) == ["data.order"]
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.step) == ("batch", 0)


def test_a_doubled_row_in_a_late_batch_is_found_there(reference: LoadedRecord) -> None:
    order = list(range(ROWS))
    order[21] = 20
    judgement = judge(reference, order=order)
    assert codes(judgement) == ["data.order"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.step == 5
    assert "row 20 appears twice" in judgement.causes[0].why


@pytest.mark.parametrize("tokenizer", ["a" * 64, "d" * 64])
def test_other_ids_of_the_same_rows_are_tokenization(reference: LoadedRecord, tokenizer: str) -> None:
    assert codes(judge(reference, ids_shift=1, tokenizer=tokenizer)) == ["tokenization"]


def test_other_initial_weights(reference: LoadedRecord) -> None:
    judgement = judge(reference, weights_seed=6)
    assert codes(judgement) == ["weights.init"]


def test_another_seed_is_rng(reference: LoadedRecord) -> None:
    assert codes(judge(reference, seed=2)) == ["rng"]


def test_another_formula_names_its_module(reference: LoadedRecord) -> None:
    judgement = judge(reference, noise={"layer.norm": 1e-3}, fingerprint=other_kernel())
    assert judgement.verdict == "drift"
    assert codes(judgement) == ["operator"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.at == "layer.norm"


def test_fewer_bits_are_precision_because_its_own_fp64_run_is_as_far(reference: LoadedRecord) -> None:
    judgement = judge(reference, noise={"layer.linear": 1e-3}, own_error=1e-3, fingerprint=other_kernel())
    assert codes(judgement) == ["precision"]


def test_another_number_format_is_precision(reference: LoadedRecord) -> None:
    judgement = judge(reference, dtype="float64")
    assert codes(judgement) == ["precision"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"loss_factor": 1.01}, "loss"),
        ({"gradient_factor": 1.25}, "gradient"),
        ({"clip": 0.5}, "gradient"),
        ({"rates": [1e-3 * (step + 2) for step in range(STEPS)]}, "schedule"),
        ({"decay": 0.02}, "optimizer"),
        ({"update_factor": {1: 1.5}}, "optimizer"),
        ({"evaluation_mode": True}, "evaluation"),
        ({"evaluation_rows": EVALUATION_ROWS - 1}, "evaluation"),
    ],
)
@pytest.mark.parametrize("explained", [False, True])
def test_each_later_rung_by_itself(reference: LoadedRecord, changes: Any, code: str, explained: bool) -> None:
    fingerprint = other_kernel() if explained else {}
    judgement = judge(reference, **changes, fingerprint=fingerprint)
    assert judgement.verdict == "drift"
    assert codes(judgement) == [code]


def test_a_scaled_gradient_says_by_how_much(reference: LoadedRecord) -> None:
    cause = judge(reference, gradient_factor=1.25).causes[0]
    assert "1.25" in cause.why


def test_two_causes_are_both_named(reference: LoadedRecord) -> None:
    rates = [1e-3 * (step + 2) for step in range(STEPS)]
    plan = Plan(rates=rates)
    plan.labels[3] = 1 - plan.labels[3]
    assert set(codes(compare(reference, make_record(plan)))) == {"data.labels", "schedule"}


def test_suspects_are_those_that_could_explain_the_cause(reference: LoadedRecord) -> None:
    fingerprint = {"packages": {"torch": "2.13.0", "tokenizers": "0.23"}, "driver": "580"}
    cause = judge(reference, ids_shift=1, fingerprint=fingerprint).causes[0]
    assert any(line.startswith("packages.tokenizers") for line in cause.suspects)
    assert not any(line.startswith("driver") for line in cause.suspects)


def test_another_hostname_is_no_cause_and_no_excuse(reference: LoadedRecord) -> None:
    assert judge(reference, fingerprint={"hostname": "other"}).verdict == "pass"
    assert judge(reference, noise={"layer.linear": 3e-7}, fingerprint={"hostname": "other"}).verdict == "drift"


LAUNCHES = {
    "TORCHELASTIC_RUN_ID": "4c1f",
    "TORCHELASTIC_ERROR_FILE": "/scratch/torchelastic_x1/none_4c1f/attempt_0/0/error.json",
    "TORCHX_JOB_ID": "local://torchx/job-7",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_MCA_orte_hnp_uri": "123;tcp://10.0.0.1:4711",
    "CUDA_VISIBLE_DEVICES": "GPU-3d1b",
    "NVIDIA_VISIBLE_DEVICES": "GPU-3d1b",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_MPS_PIPE_DIRECTORY": "/scratch/mps-41",
    "CUDA_CACHE_PATH": "/home/ann/.nv",
    "TORCHINDUCTOR_CACHE_DIR": "/scratch/torchinductor_ann",
    "TORCH_EXTENSIONS_DIR": "/home/ann/extensions",
    "TORCH_HOME": "/home/ann/.cache/torch",
    "PYTORCH_KERNEL_CACHE_PATH": "/home/ann/.cache/kernels",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/scratch/nccl_trace_41",
    "NCCL_DEBUG_FILE": "/scratch/nccl.host-3.41",
    "NCCL_COMM_ID": "10.0.0.1:4711",
    "NVIDIA_DCGM_EXPORTER_SERVICE_HOST": "10.8.0.3",
    "PYTORCH_JOB_MASTER_0_PORT": "tcp://10.8.0.4:23456",
    "PYTORCH_JOB_MASTER_0_PORT_23456_TCP_ADDR": "10.8.0.4",
}
CHOICES = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "NCCL_ALGO": "Tree",
    "NCCL_TOPO_FILE": "/etc/topology.xml",
    "PYTORCH_TUNABLEOP_FILENAME": "/etc/tuned.csv",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "TORCHINDUCTOR_CUTLASS_DIR": "/home/ann/cutlass",
    "OMP_NUM_THREADS": "4",
    "ATEN_CPU_CAPABILITY": "avx2",
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_variable_that_names_a_launch_is_no_excuse(reference: LoadedRecord, name: str) -> None:
    """A slightly wrong gradient on equal machines stays a drift, whatever the launcher called this launch."""
    environment = {"environment": {name: LAUNCHES[name]}}
    assert judge(reference, fingerprint=environment).verdict == "pass"
    judgement = judge(reference, gradient_factor=1.000001, fingerprint=environment)
    assert judgement.verdict == "drift"
    assert not any(name in suspect for cause in judgement.causes for suspect in cause.suspects)


@pytest.mark.parametrize("name", CHOICES)
def test_after_a_variable_that_chooses_a_kernel_other_rounding_is_expected(reference: LoadedRecord, name: str) -> None:
    fingerprint = {"environment": {name: CHOICES[name]}}
    judgement = judge(reference, gradient_factor=1.000001, fingerprint=fingerprint)
    assert judgement.verdict == "pass"
    assert any(note.code == "rounding" and name in note.text for note in judgement.notes)


def test_a_missing_loss_is_invalid(reference: LoadedRecord) -> None:
    broken = make_record()
    steps = [step.to_json() for step in broken.record.evidence.probe.steps]  # type: ignore[union-attr]
    steps[3]["loss"] = None
    probe = broken.record.evidence.probe.replace(steps=steps)  # type: ignore[union-attr]
    evidence = broken.record.evidence.replace(probe=probe)
    judgement = compare(reference, LoadedRecord(broken.record.replace(evidence=evidence), broken.folder, broken.arrays))
    assert judgement.verdict == "invalid"
    assert "step 3" in judgement.findings[0].metric


def test_nan_in_a_sketch_never_passes(reference: LoadedRecord) -> None:
    candidate = make_record(noise={"head": 1e-7}, fingerprint=other_kernel())
    candidate.arrays["sketches"]["sketch"][:] = math.nan
    assert compare(reference, candidate).verdict == "drift"


def test_missing_evidence_is_inconclusive_and_another_spec_invalid(reference: LoadedRecord) -> None:
    evidence = reference.record.evidence
    bare = LoadedRecord(reference.record.replace(evidence=evidence.replace(probe=None)), reference.folder)
    assert compare(reference, bare).verdict == "inconclusive"
    other = reference.record.spec.replace(seed=9)
    changed = LoadedRecord(reference.record.replace(spec=other, spec_sha256=other.digest), reference.folder)
    assert compare(reference, changed).verdict == "invalid"


@pytest.mark.parametrize(("code", "verdict"), [("non-finite", "invalid"), ("unavailable", "inconclusive")])
def test_a_failed_training_is_no_drift(reference: LoadedRecord, code: str, verdict: str) -> None:
    record = {"exit": {"status": "failed", "code": code, "message": "x", "part": "probe", "step": 3}}
    assert judge(reference, record=record).verdict == verdict


def test_part_of_another_shape_is_invalid(reference: LoadedRecord) -> None:
    candidate = make_record()
    candidate.arrays["sketches"]["sketch"] = candidate.arrays["sketches"]["sketch"][:-1]
    judgement = compare(reference, candidate)
    assert judgement.verdict == "invalid"


def test_a_tensor_that_is_only_rounding_on_both_sides_says_nothing() -> None:
    reference = make_record(own_error=1e-3)
    noisy = make_record(own_error=1e-3, noise={"layer.norm": 1e-3}, fingerprint=other_kernel())
    off = [error.reference.name for error in Pair(reference, noisy).errors(0, "forward") if error.over]
    assert off == []
    sound = make_record()
    assert [error.reference.name for error in Pair(sound, noisy).errors(0, "forward") if error.over] == [
        "layer.norm", "head",
    ]  # fmt: skip


def test_a_run_whose_own_envelope_is_wide_does_not_vouch_for_itself(reference: LoadedRecord) -> None:
    made = make_record(noise={"layer.norm": 1e-3}, fingerprint=other_kernel())
    probe = made.record.evidence.probe
    assert probe is not None
    assert probe.envelope is not None
    wide = probe.envelope.replace(errors=[1.0] * len(probe.taps))
    evidence = made.record.evidence.replace(probe=probe.replace(envelope=wide.to_json()).to_json())
    record = made.record.replace(evidence=evidence.to_json())
    assert compare(reference, LoadedRecord(record, made.folder, made.arrays)).verdict == "drift"


def zero_gradient(size: float, own: float, **changes: Any) -> LoadedRecord:
    """Return a record whose gradient of `embed.weight` is noise of `size`."""
    made = make_record(**changes)
    probe = made.record.evidence.probe
    assert probe is not None
    assert probe.envelope is not None
    taps, errors = [tap.to_json() for tap in probe.taps], list(probe.envelope.fp64_errors)
    for place, tap in enumerate(taps):
        if (tap["stage"], tap["name"]) == ("gradient", "embed.weight"):
            made.arrays["sketches"]["sketch"][place] = np.random.default_rng(place).normal(size=64) * size / 8
            tap |= {"norm": size, "sha256": digest_json([size, place])}
            errors[place] = own
    envelope = probe.envelope.replace(fp64_errors=errors)
    changed = probe.replace(taps=taps, envelope=envelope.to_json())
    evidence = made.record.evidence.replace(probe=changed.to_json())
    return LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)


def test_a_gradient_that_is_zero_by_construction_says_nothing_between_kernels() -> None:
    reference = zero_gradient(1e-12, 1.0)
    assert compare(reference, zero_gradient(1e-10, 1.0, fingerprint=other_kernel())).verdict == "pass"


@pytest.mark.parametrize("side", [0, 1])
def test_a_gradient_that_is_real_in_one_of_both_runs_still_counts(side: int) -> None:
    owns = [2e-7, 1.0] if side else [1.0, 2e-7]
    candidate = zero_gradient(1e-3, owns[1], fingerprint=other_kernel())
    assert codes(compare(zero_gradient(1e-5, owns[0]), candidate)) == ["gradient"]


def test_a_fault_beside_a_gradient_of_zero_is_found() -> None:
    candidate = zero_gradient(1e-10, 1.0, fingerprint=other_kernel(), gradient_factor=1.25)
    assert codes(compare(zero_gradient(1e-12, 1.0), candidate)) == ["gradient"]


def test_a_gradient_of_zero_that_is_not_finite_never_passes() -> None:
    candidate = zero_gradient(1e-10, 1.0, fingerprint=other_kernel())
    candidate.arrays["sketches"]["sketch"][:] = math.nan
    assert compare(zero_gradient(1e-12, 1.0), candidate).verdict == "drift"


def test_texts_edited_after_the_manifest_was_written_are_content_not_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[3] += 500
    made, data = make_record(plan), reference.record.evidence.data
    assert data is not None
    assert made.record.evidence.data is not None
    same_list = made.record.evidence.data.replace(shards=data.to_json()["shards"], manifest_sha256=data.manifest_sha256)
    evidence = made.record.evidence.replace(data=same_list.to_json())
    candidate = LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)
    assert codes(compare(reference, candidate)) == ["data.content"]


def test_shards_listed_in_another_order_are_an_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[:16] = [*plan.texts[8:16], *plan.texts[:8]]
    plan.labels[:16] = [*plan.labels[8:16], *plan.labels[:8]]
    made, data = make_record(plan), reference.record.evidence.data
    assert data is not None
    assert made.record.evidence.data is not None
    shards = data.to_json()["shards"]
    moved = made.record.evidence.data.replace(shards=[shards[1], shards[0], *shards[2:]])
    evidence = made.record.evidence.replace(data=moved.to_json())
    candidate = LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)
    assert codes(compare(reference, candidate)) == ["data.order"]


@pytest.mark.parametrize("explained", [False, True])
@pytest.mark.parametrize(
    ("factors", "code"),
    [
        (dict.fromkeys(range(STEPS), 1.5), "schedule"),
        ({0: 1.5, 1: 1.5}, "optimizer"),  # two steps: Adam's bias correction could do that
        ({0: 1.5, 1: 1.3, 2: 1.1}, "optimizer"),
        (dict.fromkeys(range(STEPS), 0.0), "optimizer"),
    ],
)
def test_updates_that_are_all_the_references_times_one_factor_are_a_rate(
    reference: LoadedRecord, factors: dict[int, float], code: str, explained: bool
) -> None:
    judgement = judge(reference, update_factor=factors, fingerprint=other_kernel() if explained else {})
    assert codes(judgement) == [code]


def test_updates_of_the_same_length_in_another_direction_are_no_rate(reference: LoadedRecord) -> None:
    made = make_record(update_factor=dict.fromkeys(range(STEPS), 1.5))
    probe = made.record.evidence.probe
    assert probe is not None
    for place, tap in enumerate(probe.taps):
        if tap.stage == "weight" and tap.step == 0:
            made.arrays["sketches"]["sketch"][place] *= 1.2
    assert codes(compare(reference, made)) == ["optimizer"]
