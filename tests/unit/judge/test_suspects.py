"""Which differences of two machines could explain a cause."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from plumbline.judge.suspects import differences, suspects_for
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.verdict import CauseCode


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
OWN = {
    "data.content": "packages.pyarrow", "data.labels": "packages.pyarrow", "data.order": "environment.PYTHONHASHSEED",
    "tokenization": "packages.tokenizers", "model.architecture": "packages.torch", "schedule": "packages.torch",
    "weights.init": "cpu.isa", "rng": "python", "loss": "packages.numpy", "gradient": "topology.ring",
    "optimizer": "packages.bitsandbytes", "evaluation": "packages.evaluate", "loader": "environment.HF_HOME",
    "contention": "num_processes", "environment": "packages.black", "unattributed": "packages.black",
    **dict.fromkeys(("precision", "operator", "kernel", "nondeterminism", "software"), "mantissa_bits.linear"),
    **dict.fromkeys(("device", "transfer", "throttling", "slow-device"), "driver"),
}  # fmt: skip


@pytest.mark.parametrize("code", get_args(CauseCode))
def test_each_cause_has_its_own_suspects(code: CauseCode) -> None:
    names = {line.partition(": ")[0] for line in suspects_for(code, LINES)}
    assert OWN[code] in names
    assert ("packages.black" in names) is (code in {"environment", "unattributed"})
    assert not names & {"gpus.0.uuid", "gpus.3.pci", "hostname"}
    assert ("gpus.3.num_sms" in names) is ("gpus.0.name" in names)


def test_differences_are_listed_from_both_sides() -> None:
    left = machine(
        packages={"b": "1", "a": "1", "left": "1"}, gpus=[gpu("A100"), gpu("A100")], environment={"OMP": "1"},
        numerics={"tf32": True, "none": None, "same": 1.5},
    )  # fmt: skip
    right = machine(
        packages={"a": "2", "b": "1", "right": "1"}, gpus=[gpu("A100"), gpu("H100", num_sms=132)], os="Darwin",
        numerics={"tf32": False, "none": 0, "same": 1.5},
    )  # fmt: skip
    found = differences(left, right)
    assert found == (
        "os: Linux → Darwin", "gpus.1.name: A100 → H100", "gpus.1.num_sms: 108 → 132", "packages.a: 1 → 2",
        "packages.left: 1 → absent", "numerics.none: None → 0", "numerics.tf32: True → False",
        "environment.OMP: 1 → absent", "packages.right: absent → 1",
    )  # fmt: skip
    assert [line.split(": ")[0] for line in differences(right, left)][-2:] == ["packages.left", "environment.OMP"]
    assert differences(left, left) == ()
    assert "gpus.0.name: absent → A100" in differences(machine(), machine(gpus=[gpu("A100")]))
