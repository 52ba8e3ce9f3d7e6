"""Catalogue of faults: injection, workload and expected cause.

It is no exam to tune the judge to: nothing in the product knows any of these names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

__all__ = ["CONTROLS", "FAULTS", "Entry", "injector"]


@dataclass(frozen=True)
class Entry:
    """One fault, or one control if `expected` is empty."""

    name: str
    family: str
    expected: str
    inject: str = ""
    """`module.function` below `bench.faults.injectors`, applied in the training process; several with commas."""
    alter: str = ""
    """The same, applied to a copy of the dataset."""
    workload: str = "cls"
    environment: dict[str, str] = field(default_factory=dict)
    setting: str = ""
    """For controls that need the runner's help: `cache`, `repeat`, `load`, `apart`, `two processes`."""

    @property
    def causes(self) -> frozenset[str]:
        """Return the expected cause codes, several for combined faults."""
        return frozenset(filter(None, self.expected.split(" + ")))

    @property
    def words(self) -> str:
        """Return the description, from the injectors' docstrings."""
        names = [name for name in (self.alter, *self.inject.split(",")) if name]
        result = [(inspect.getdoc(_function(name)) or "").split("\n")[0] for name in names]
        return " ".join(result) or _WORDS[self.name]


def _function(name: str) -> Callable[..., None]:
    module, _, function = name.rpartition(".")
    result: Callable[..., None] = getattr(import_module(f"bench.faults.injectors.{module}"), function)
    return result


def injector(name: str) -> Callable[[str], None]:
    """Return the function that applies a fault in the current process."""

    def inject(_record_id: str) -> None:
        for item in name.split(","):
            _function(item)()

    return inject


_WORDS = {
    "environment-order": "The environment's variables in another order, and one more.",
    "cache-folder": "Another cache folder.",
    "same-folder-again": "The run was interrupted and started again over its own remains.",
    "hash-seed": "Another `PYTHONHASHSEED`, in an interpreter of its own.",
    "two-processes": "Two processes share each batch.",
    "background-load": "Another process computes beside it.",
    "avx2": "Kernels for AVX2.",
    "no-vector-isa": "Kernels without vector instructions.",
    "time-zone": "Another time zone and locale.",
    "as-fast-as-before": "Nothing; the machine alone varies.",
    "tokenizers-serial": "The tokenizer works with one thread.",
    "onednn-for-sse41": "oneDNN uses kernels for SSE4.1.",
    "mkl-for-avx2": "MKL uses kernels for AVX2.",
    "small-cublas-workspace": "cuBLAS has a smaller workspace.",
    "memory-arenas": "The C library allocates memory from two arenas.",
    "fp16-for-avx2": "Kernels for AVX2, and harmless variables.",
    "fp32-without-vector-isa": "Kernels without vector instructions.",
    "bf16-by-onednn-for-avx2": "oneDNN uses kernels for AVX2.",
    "eager-for-avx2": "Kernels for AVX2, and harmless variables.",
    "fp16-without-vector-isa": "Kernels without vector instructions.",
    "compiled-beside-variables": "Harmless variables.",
    "bf16-without-vector-isa": "Kernels without vector instructions, and harmless variables.",
    "compiled-by-one-thread": "The compiler works with one thread, beside harmless variables.",
    "eager-without-vector-isa": "Kernels without vector instructions, and harmless variables.",
    "fp32-by-mkl-for-avx2": "MKL uses kernels for AVX2.",
    "compiled-without-a-cache": "The compiler reads no code of earlier runs, beside harmless variables.",
    "bf16-of-two-processes": "Two processes share each batch.",
    "bf16-for-avx2": "Kernels for AVX2, and harmless variables.",
    "eager-by-onednn-for-avx2": "oneDNN uses kernels for AVX2.",
    "fp32-of-two-processes": "Two processes share each batch.",
    "fp32-for-avx2": "Kernels for AVX2, and harmless variables.",
    "compiled-in-small-chunks": "The compiler splits loops into smaller chunks, beside harmless variables.",
    "eager-of-two-processes": "Two processes share each batch.",
    "packed-without-vector-isa": "Kernels without vector instructions for packed rows, and harmless variables.",
}


def _inside(family: str, expected: str, module: str, names: str, workload: str = "cls") -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), family, expected, inject=f"{module}.{name}", workload=workload)
        for name in names.split()
    ]


def _files(expected: str, family: str, names: str) -> list[Entry]:
    return [Entry(name.replace("_", "-"), family, expected, alter=f"data.{name}") for name in names.split()]


FAULTS: tuple[Entry, ...] = (
    *_files("data.content", "data", "one_word one_character mojibake row_removed row_repeated"),
    *_files("data.labels", "data", "one_label some_labels"),
    *_inside("data", "data.labels", "data", "labels_shifted one_label_in_memory"),
    *_files("data.order", "data", "shards_reordered rows_swapped"),
    *_inside(
        "data", "data.order", "data", "order_seed unshuffled dropped_row doubled_row reversed_batch last_batch_refilled"
    ),
    *_files(
        "tokenization",
        "tokenizer",
        "lower_case accents_stripped whitespace_kept no_special_tokens truncated_left padded_left unmerged_word",
    ),
    *_inside("tokenizer", "tokenization", "data", "encoder_bug mask_lost segments_wrong"),
    *_inside(
        "init", "weights.init", "model", "reseeded_weights other_isa_weights padding_row_drawn biases_kept_from_before"
    ),
    *_inside("init", "model.architecture", "model", "tied_layers missing_layer"),
    *_inside("init", "model.architecture", "model", "untied_decoder", "mlm"),
    *_inside("rng", "rng", "data", "other_seed python_unseeded dropout_on attention_dropout_on extra_draw"),
    *_inside("rng", "rng", "data", "mask_draw_seed", "mlm"),
    *_inside(
        "precision",
        "precision",
        "model",
        "tf32 bf16_products bf16_autocast fp16_autocast fp64_left_on fp16_loss softmax_autocast "
        "layer_norm_bf16 fp16_gradients",
    ),
    *_inside(
        "operator",
        "operator",
        "model",
        "tanh_gelu relu_for_gelu layer_norm_eps layer_norm_unbiased mask_ignored attention_scale "
        "position_offset positions_ignored pooler_activation pooler_token residual_missing "
        "wrong_head_split embedding_scaled operator_from_step_four",
    ),
    *_inside("loss", "loss", "training", "loss_sum label_smoothing class_weights"),
    *_inside("loss", "loss", "training", "ignore_index_lost loss_over_all_positions", "mlm"),
    *_inside(
        "gradient",
        "gradient",
        "training",
        "accumulation_sum gradient_halved frozen_layer detached_embeddings stale_gradients one_gradient_doubled",
    ),
    *_inside("gradient", "gradient", "training", "clipping_off clipping_other_norm clipping_by_value", "clip"),
    *_inside("gradient", "gradient", "training", "mean_of_means", "mlm"),
    *_inside(
        "optimizer",
        "optimizer",
        "training",
        "betas epsilon weight_decay_everywhere l2_in_place_of_decay amsgrad no_bias_correction "
        "stale_momentum skipped_update",
    ),
    *_inside(
        "schedule",
        "schedule",
        "training",
        "warmup_off_by_one schedule_before_optimizer decay_end constant_rate rate_dropped_late",
    ),
    *_inside(
        "evaluation",
        "evaluation",
        "training",
        "evaluated_in_training_mode wrong_split shifted_split last_row_twice last_batch_dropped "
        "evaluated_in_bf16 evaluation_temperature",
    ),
    *_inside(
        "kernel",
        "kernel",
        "kernels",
        "softmax_spelt_out layer_norm_in_two_passes linear_summed_in_fp64 linear_in_halves gelu_by_its_formula "
        "entropy_by_its_formula linear_backward_in_fp64 update_multiplied_otherwise",
    ),
    *_inside("schedule", "schedule", "verdicts", "rate_inside_the_step"),
    *_inside("evaluation", "evaluation", "verdicts", "dropout_in_evaluation"),
    *_inside("gradient", "gradient", "verdicts", "gradients_lost_after_step_two"),
    *_inside("data", "data.content", "verdicts", "texts_edited_when_read"),
    *_inside("nondeterminism", "nondeterminism", "training", "racing_reduction racing_gradients uninitialised_memory"),
    *_inside("nondeterminism", "nondeterminism", "data", "unseeded_order unseeded_augmentation"),
)

_TWO = (
    Entry("labels-and-warmup", "two", "data.labels + schedule", "training.warmup_off_by_one", "data.one_label"),
    Entry("tokenizer-and-epsilon", "two", "tokenization + optimizer", "training.epsilon", "data.lower_case"),
    Entry("order-and-smoothing", "two", "data.order + loss", "data.order_seed,training.label_smoothing"),
    Entry("gelu-and-decay", "two", "operator + schedule", "model.tanh_gelu,training.decay_end"),
    Entry(
        "weights-and-clipping",
        "two",
        "weights.init + gradient",
        "model.other_isa_weights,training.clipping_off",
        workload="clip",
    ),
    Entry("labels-and-gelu", "two", "data.labels + operator", "model.tanh_gelu", "data.one_label"),
    Entry("order-and-accumulation", "two", "data.order + gradient", "data.reversed_batch,training.gradient_halved"),
)
"""Two faults at once: the second may show only once the first is put back."""

FAULTS = (*FAULTS, *_TWO)

CONTROLS: tuple[Entry, ...] = (
    *_inside(
        "control",
        "",
        "controls",
        "other_hostname clock_skew unrelated_package loader_workers two_threads sdpa fused_optimizer "
        "foreach_optimizer without_mkldnn other_gradient_layout",
    ),
    Entry("environment-order", "control", "", environment={"A_FIRST_VARIABLE": "1"}),
    Entry("cache-folder", "control", "", setting="cache"),
    Entry("same-folder-again", "control", "", setting="repeat"),
    Entry("background-load", "control", "", setting="load"),
    Entry("avx2", "control", "", environment={"ATEN_CPU_CAPABILITY": "avx2"}),
    Entry("no-vector-isa", "control", "", environment={"ATEN_CPU_CAPABILITY": "default"}),
    Entry("hash-seed", "control", "", environment={"PYTHONHASHSEED": "12345"}, setting="apart"),
    Entry("two-processes", "control", "", setting="two processes"),
    Entry("time-zone", "control", "", environment={"TZ": "Asia/Tokyo", "LC_ALL": "C"}),
)
