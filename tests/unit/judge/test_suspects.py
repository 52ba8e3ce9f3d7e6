"""Which differences of two machines could explain a cause."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from plumbline.judge.suspects import differences, explains_rounding, suspects_for
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.rounding import rounding_fields
from plumbline.schema.verdict import CauseCode
from tests.kept_results import keep


def machine(**changes: Any) -> Fingerprint:
    plain: dict[str, Any] = {
        "hostname": "h", "os": "Linux", "python": "3.11", "plumbline": "0",
        "cpu": {"model": "m", "isa": "AVX2", "num_cores": 2, "num_threads": 1},
    }  # fmt: skip
    return Fingerprint.model_validate(plain | changes)


def gpu(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "uuid": "u0", "memory_bytes": 80, "num_sms": 108, "pci": "0"} | changes


NAMES = (
    "packages.torch", "packages.numpy", "packages.pyarrow", "packages.tokenizers", "packages.nvidia-cublas",
    "packages.bitsandbytes", "packages.apex", "packages.evaluate", "packages.black", "python", "os", "driver", "cuda",
    "cudnn", "nccl", "num_processes", "topology.ring", "numerics.tf32", "mantissa_bits.linear", "cpu.isa", "cpu.model",
    "cpu.num_cores", "cpu.num_threads", "gpus.0.name", "gpus.3.num_sms", "gpus.0.uuid", "gpus.3.pci", "hostname",
    "lock_sha256", "container_image", "plumbline", "environment.OMP_NUM_THREADS", "environment.CUBLAS_WORKSPACE_CONFIG",
    "environment.CUDA_VISIBLE_DEVICES", "environment.PYTHONHASHSEED", "environment.HF_HOME",
    "environment.KUBERNETES_SERVICE_HOST", "environment.TORCHELASTIC_RUN_ID", "environment.NCCL_DEBUG_FILE",
)  # fmt: skip
LINES = tuple(f"{name}: left: 1 → right: 2" for name in NAMES)


@pytest.mark.parametrize("code", get_args(CauseCode))
def test_each_cause_has_its_own_suspects(code: CauseCode) -> None:
    found = keep(suspects_for(code, LINES))
    assert set(found) <= set(LINES)
    names = {line.partition(": ")[0] for line in found}
    never = {"gpus.0.uuid", "gpus.3.pci", "environment.CUDA_VISIBLE_DEVICES", "environment.KUBERNETES_SERVICE_HOST"}
    assert not names & (never | {"hostname"})
    assert ("gpus.3.num_sms" in names) is ("gpus.0.name" in names)


def test_a_field_that_one_side_did_not_measure_explains_no_rounding() -> None:
    lines = (
        "numerics.tf32: absent → True", "numerics.tf32: True → absent", "numerics.tf32: True → False",
        "mantissa_bits.linear: absent → 24", "mantissa_bits.linear: 24 → absent", "mantissa_bits.linear: 24 → 11",
        "packages.torch: absent → 2", "cuda: 12 → absent", "numerics.mode: absent-minded → 1", "hostname: a → b",
    )  # fmt: skip
    assert keep(explains_rounding(lines)) == (lines[2], *lines[5:9])


@pytest.mark.parametrize(
    ("change", "explains"),
    [
        ({"cpu": {"model": "m", "isa": "AVX2", "num_cores": 2, "num_threads": 2}}, True),
        ({"packages": {"torch": "2.12"}}, True), ({"gpus": [gpu("H100")]}, True), ({"hostname": "g"}, False),
        ({"gpus": [gpu("A100", uuid="u1")]}, False), ({"packages": {"torch": "2.13", "black": "26"}}, False),
    ],
)  # fmt: skip
def test_the_fields_of_rounding_differ_where_a_difference_explains_rounding(change: dict, explains: bool) -> None:
    plain = {"packages": {"torch": "2.13"}, "gpus": [gpu("A100")]}
    one, other = machine(**plain), machine(**plain | change)
    assert (rounding_fields(one) != rounding_fields(other)) is explains
    assert bool(explains_rounding(differences(one, other))) is explains


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "KMP_BLOCKTIME", "TORCH_LOGS", "MKL_VERBOSE", "PYTORCH_ALLOC_CONF", "CUDA_HOME", "ONEDNN_VERBOSE"],
)  # fmt: skip
def test_a_variable_that_changes_no_bit_excuses_no_rounding(name: str) -> None:
    one, other = machine(), machine(environment={name: "1"})
    assert differences(one, other)
    assert not explains_rounding(differences(one, other))
    assert explains_rounding(differences(one, machine(environment={"ONEDNN_MAX_CPU_ISA": "AVX2"})))


def test_differences_are_listed_from_both_sides() -> None:
    left = machine(
        packages={"b": "1", "a": "1", "left": "1"}, gpus=[gpu("A100"), gpu("A100")], environment={"OMP": "1"},
        numerics={"tf32": True, "none": None, "same": 1.5},
    )  # fmt: skip
    right = machine(
        packages={"a": "2", "b": "1", "right": "1"}, gpus=[gpu("A100"), gpu("H100", num_sms=132)], os="Darwin",
        numerics={"tf32": False, "none": 0, "same": 1.5},
    )  # fmt: skip
    found = keep(differences(left, right))
    assert found == (
        "os: Linux → Darwin", "gpus.1.name: A100 → H100", "gpus.1.num_sms: 108 → 132", "packages.a: 1 → 2",
        "packages.left: 1 → absent", "numerics.none: None → 0", "numerics.tf32: True → False",
        "environment.OMP: 1 → absent", "packages.right: absent → 1",
    )  # fmt: skip
    assert [line.split(": ")[0] for line in keep(differences(right, left))][-2:] == ["packages.left", "environment.OMP"]
    assert differences(left, left) == ()
    assert all(differences(machine(), machine(gpus=[gpu("A100")])))
