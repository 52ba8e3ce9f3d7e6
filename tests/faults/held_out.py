"""The held-out set: faults, controls and expected causes that were written down before the judge first saw them.

Drawn from what goes wrong in public trackers of torch, transformers, tokenizers and datasets, and from what the
catalogue leaves out. The expected code follows the ladder of DESIGN.md: the first rung that differs. Since their one
run they stand in the catalogue as well.
"""

from __future__ import annotations

from tests.faults.catalogue import Entry

__all__ = ["HELD_OUT", "HELD_OUT_CONTROLS", "WRITTEN_IN"]

WRITTEN_IN = "dffde8d"
"""The commit that fixed the expected causes."""


def _inside(family: str, expected: str, module: str, names: str, workload: str = "cls") -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), family, expected, inject=f"held_out_{module}.{name}", workload=workload)
        for name in names.split()
    ]


def _files(expected: str, family: str, names: str) -> list[Entry]:
    return [Entry(name.replace("_", "-"), family, expected, alter=f"held_out_data.{name}") for name in names.split()]


HELD_OUT: tuple[Entry, ...] = (
    *_files("data.content", "data", "shard_uploaded_twice decomposed_accents white_space_tidied"),
    *_files("data.labels", "data", "label_map_permuted"),
    *_inside("data", "data.labels", "data", "labels_of_neighbours"),
    *_inside("data", "data.order", "data", "other_shuffle batches_crossed rows_dealt_out batch_skipped"),
    *_files("tokenization", "tokenizer", "decomposing_normalizer numbers_exchanged"),
    *_inside("tokenizer", "tokenization", "data", "truncated_short stale_tokens other_padding separator_hidden"),
    *_inside(
        "init", "weights.init", "model", "head_drawn_anew layer_from_another_file weight_transposed checkpoint_in_half"
    ),
    *_inside("init", "model.architecture", "model", "vocabulary_padded bias_missing"),
    *_inside("rng", "rng", "data", "torch_unseeded numpy_reseeded classifier_dropout"),
    *_inside(
        "precision",
        "precision",
        "model",
        "gelu_in_bf16 one_layer_norm_in_bf16 scores_in_bf16 pooler_in_bf16 gradients_sent_in_bf16",
    ),
    *_inside("precision", "precision", "model", "decoder_in_fp16", "mlm"),
    *_inside(
        "operator",
        "operator",
        "model",
        "one_tanh_gelu quick_gelu mask_added_as_one mask_too_weak causal_mask softmax_plus_one mean_pooling "
        "segments_ignored bias_twice",
    ),
    *_inside("loss", "loss", "training", "z_loss two_binary_losses focal_loss loss_temperature"),
    *_inside("loss", "loss", "training", "mean_of_row_means", "mlm"),
    *_inside("gradient", "gradient", "training", "clipped_one_by_one clipped_twice_the_norm", "clip"),
    *_inside(
        "gradient",
        "gradient",
        "training",
        "scaled_by_frequency bias_gradients_lost last_micro_batch_lost doubled_at_step_seven",
    ),
    *_inside(
        "optimizer",
        "optimizer",
        "training",
        "eps_inside_the_root decay_without_the_rate layer_norms_decay moments_lost counted_from_two "
        "second_moment_in_bf16 one_weight_not_updated nesterov",
    ),
    *_inside(
        "schedule", "schedule", "training", "cosine stepped_twice warmup_from_zero schedule_restarted rate_in_half"
    ),
    *_inside(
        "evaluation",
        "evaluation",
        "training",
        "averaged_by_batch evaluated_shorter evaluation_reversed evaluation_labels_mapped "
        "weights_before_the_last_update evaluated_without_mask",
    ),
    *_inside("nondeterminism", "nondeterminism", "data", "seeded_by_the_clock batches_as_they_come evaluation_races"),
    *_inside("nondeterminism", "nondeterminism", "training", "racing_embedding"),
    Entry(
        "transposed-and-z-loss",
        "two",
        "weights.init + loss",
        "held_out_model.weight_transposed,held_out_training.z_loss",
    ),
    Entry(
        "normalizer-and-restart",
        "two",
        "tokenization + schedule",
        "held_out_training.schedule_restarted",
        "held_out_data.decomposing_normalizer",
    ),
    Entry(
        "label-map-and-micro-batch",
        "two",
        "data.labels + gradient",
        "held_out_training.last_micro_batch_lost",
        "held_out_data.label_map_permuted",
    ),
    Entry(
        "bf16-gelu-and-short-evaluation",
        "two",
        "precision + evaluation",
        "held_out_model.gelu_in_bf16,held_out_training.evaluated_shorter",
    ),
    Entry(
        "causal-and-moments",
        "two",
        "operator + optimizer",
        "held_out_model.causal_mask,held_out_training.moments_lost",
    ),
)

HELD_OUT_CONTROLS: tuple[Entry, ...] = (
    *_inside(
        "control",
        "",
        "model",
        "layer_norm_in_parts softmax_in_parts products_in_halves scaled_first entropy_in_parts segments_left_out "
        "other_transformers",
    ),
    *_inside("control", "", "training", "update_in_another_order"),
    Entry("tokenizers-serial", "control", "", environment={"TOKENIZERS_PARALLELISM": "false"}),
)
