"""Native operations: a kernel that a library takes for dropout alone is among them, and its rounding shows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from plumbline.schema.spec import DataSpec, ModelSpec, RunSpec
from plumbline.train.engine import Engine
from plumbline.train.machine.native_operations import measure_operations
from plumbline.train.models.model import build_model
from plumbline.train.ranks import Ranks

PLAIN = functional.scaled_dot_product_attention


def measured(dropout: float) -> dict[str, str]:
    """Return the digest of each operation of a small model in bf16 by name."""
    model = ModelSpec(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16,
        vocab_size=50, num_labels=2, weights_key="w", weights_sha256="0" * 64,
    )  # fmt: skip
    data = DataSpec(name="d", manifest_sha256="0" * 64, sequence_length=16)
    spec = RunSpec(
        workload="w", task="sequence-classification", model=model, data=data, seed=1, batch_size=4,
        speed={"steps": 10},
    )  # fmt: skip
    built = build_model(spec, attention="sdpa", dropout=dropout, device=torch.device("cpu")).train()
    engine = Engine(spec, built, Ranks(), steps=1, precision="bf16", part="speed")
    state = torch.get_rng_state()
    found = {operation.name: operation.sha256 for operation in measure_operations(engine, 3, 3)}
    assert torch.equal(torch.get_rng_state(), state)
    return found


def test_attention_with_dropout_is_an_operation_of_a_model_that_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it takes a matrix product of a different library than without dropout."""
    before = measured(0.1)

    def otherwise(query: Any, key: Any, value: Any, *, attn_mask: Any, dropout_p: float = 0.0) -> Any:
        """Round one of 4096 values to its neighbour, as a sum in a different order does at most."""
        found = PLAIN(query, key, value, attn_mask=attn_mask)
        is_other = (query.abs().sum(-1, keepdim=True) * 1024).long() % 4096 == 0
        return torch.where(is_other, found * (1 + 2.0**-7), found) if dropout_p else found

    monkeypatch.setattr(functional, "scaled_dot_product_attention", otherwise)
    after = measured(0.1)
    assert {name for name in before if before[name] != after[name]} == {"attention with dropout, 4 rows"}
    assert not any("dropout" in name for name in measured(0.0))


def test_a_measurement_computes_attention_in_the_layouts_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps the plan of cuDNN's attention by its inputs' layout, not by that of the gradient that it gets.

    On an H200, a measurement with gradients in a different layout gave a later training wrong gradients of queries,
    keys and values: of the right size, and 100% off.
    """
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def noted(*given: Any, **more: Any) -> torch.Tensor:
        found: torch.Tensor = PLAIN(*given, **more)
        if found.requires_grad:
            found.register_hook(lambda slope: seen.append((found.stride(), slope.stride())))
        return found

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noted)
    measured(0.1)
    assert seen
    assert all(output == slope for output, slope in seen)
