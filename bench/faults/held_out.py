"""Held-out sets: faults and causes that were fixed before the judge saw them.

Drawn from what goes wrong in public trackers of torch, transformers, tokenizers and datasets, and from what the
catalogue leaves out. The expected code follows the ladder of DESIGN.md: the first rung that differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.faults.catalogue import Entry
from bench.faults.held_out_eighth import EIGHTH, EIGHTH_CONTROLS
from bench.faults.held_out_eleventh import ELEVENTH, ELEVENTH_CONTROLS
from bench.faults.held_out_fifth import FIFTH, FIFTH_CONTROLS
from bench.faults.held_out_fourth import FOURTH, FOURTH_CONTROLS
from bench.faults.held_out_ninth import NINTH, NINTH_CONTROLS
from bench.faults.held_out_seventh import SEVENTH, SEVENTH_CONTROLS
from bench.faults.held_out_sixth import SIXTH, SIXTH_CONTROLS
from bench.faults.held_out_tenth import TENTH, TENTH_CONTROLS
from bench.faults.held_out_thirteenth import THIRTEENTH, THIRTEENTH_CONTROLS
from bench.faults.held_out_twelfth import TWELFTH, TWELFTH_CONTROLS

__all__ = ["SETS", "HeldOut"]


def _inside(family: str, expected: str, module: str, names: str, workload: str = "cls") -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), family, expected, inject=f"held_out_{module}.{name}", workload=workload)
        for name in names.split()
    ]


def _files(expected: str, family: str, names: str, module: str = "data") -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), family, expected, alter=f"held_out_{module}.{name}") for name in names.split()
    ]


_FIRST: tuple[Entry, ...] = (
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

_FIRST_CONTROLS: tuple[Entry, ...] = (
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

_SECOND: tuple[Entry, ...] = (
    *_files("data.content", "data", "newline_at_the_end", "second"),
    *_files("data.labels", "data", "labels_of_a_shard_shifted", "second"),
    *_inside("data", "data.order", "second", "shards_shuffled_alone"),
    *_files("tokenization", "tokenizer", "words_too_long", "second"),
    *_inside("tokenizer", "tokenization", "second", "special_tokens_exchanged second_segment"),
    *_inside("init", "weights.init", "second", "layers_crossed embeddings_twice_as_large"),
    *_inside("init", "model.architecture", "second", "adapter_left_in"),
    *_inside("rng", "rng", "second", "one_draw_too_many dropout_from_step_three"),
    *_inside("precision", "precision", "second", "contexts_in_bf16 embeddings_in_fp16 residual_in_bf16"),
    *_inside(
        "operator",
        "operator",
        "second",
        "one_eps values_from_keys silu_in_one_layer mask_shifted scaled_as_if_dropped",
    ),
    *_inside("loss", "loss", "second", "loss_halved little_smoothing"),
    *_inside("loss", "loss", "second", "labels_shifted_in_the_loss", "mlm"),
    *_inside("gradient", "gradient", "second", "clipping_with_a_margin", "clip"),
    *_inside("gradient", "gradient", "second", "gradients_centred first_layer_halved"),
    *_inside("optimizer", "optimizer", "second", "betas_of_one_group updates_bounded weights_in_bf16_from_step_five"),
    *_inside("schedule", "schedule", "second", "squared_decay rate_never_below_a_third"),
    *_inside("evaluation", "evaluation", "second", "last_batch_filled_up evaluated_as_bf16_model"),
    *_inside("nondeterminism", "nondeterminism", "second", "label_noise"),
    Entry(
        "shard-labels-and-floor",
        "two",
        "data.labels + schedule",
        "held_out_second.rate_never_below_a_third",
        "held_out_second.labels_of_a_shard_shifted",
    ),
    Entry(
        "crossed-and-bounded",
        "two",
        "weights.init + optimizer",
        "held_out_second.layers_crossed,held_out_second.updates_bounded",
    ),
    Entry(
        "segment-and-smoothing",
        "two",
        "tokenization + loss",
        "held_out_second.second_segment,held_out_second.little_smoothing",
    ),
)

_SECOND_CONTROLS: tuple[Entry, ...] = (
    *_inside("control", "", "second", "gelu_in_parts sdpa_in_a_new_release weights_copied_first"),
)

_THIRD: tuple[Entry, ...] = (
    *_files(
        "data.content", "data", "full_stop_appended first_letters_doubled columns_joined_twice byte_order_mark", "third"
    ),
    *_files("data.labels", "data", "labels_inverted_in_a_third labels_all_of_one_class", "third"),
    *_files("data.order", "data", "halves_exchanged", "third"),
    *_inside("data", "data.labels", "third", "labels_of_one_class_lost labels_cast_through_bool"),
    *_inside(
        "data", "data.order", "third", "same_batch_twice workers_with_one_seed sorted_within_the_batch epoch_never_set"
    ),
    *_inside(
        "tokenizer",
        "tokenization",
        "third",
        "unknown_tokens_in_the_middle classification_token_lost ids_clamped mask_one_short",
    ),
    *_inside("rng", "rng", "third", "hidden_places_shifted", "mlm"),
    *_inside(
        "init",
        "weights.init",
        "third",
        "head_left_at_zero query_and_key_exchanged layer_norms_start_at_half weights_through_fp16_in_one_layer",
    ),
    *_inside("init", "model.architecture", "third", "a_head_more positions_cut"),
    *_inside("rng", "rng", "third", "seeded_with_the_rank a_draw_at_each_step hidden_dropout_on"),
    *_inside("precision", "precision", "third", "query_in_bf16 last_norm_in_fp16 classifier_in_bf16 products_in_fp16"),
    *_inside(
        "operator",
        "operator",
        "third",
        "one_residual_doubled sigmoid_gelu pooler_without_tanh softmax_over_another_axis norm_of_a_large_eps "
        "scores_not_scaled embeddings_not_normalised relu_in_one_layer",
    ),
    *_inside(
        "loss",
        "loss",
        "third",
        "loss_over_micro_batches_averaged_again loss_doubled_as_by_a_sum_over_devices scores_scaled_before_the_loss "
        "confidence_penalty",
    ),
    *_inside("loss", "loss", "third", "loss_of_a_sentence_mean", "mlm"),
    *_inside(
        "gradient",
        "gradient",
        "third",
        "gradients_never_cleared averaged_over_one_process_too_many sign_flipped_in_the_head "
        "embedding_gradients_sparse_lost gradient_noise_added synchronised_every_other_step",
    ),
    *_inside("gradient", "gradient", "third", "norm_clipped_by_value never_clipped", "clip"),
    *_inside(
        "optimizer",
        "optimizer",
        "third",
        "decay_coupled_to_the_gradient second_moment_forgotten weights_kept_in_bf16 averaged_weights "
        "head_updated_twice decay_for_everything betas_exchanged",
    ),
    *_inside(
        "schedule",
        "schedule",
        "third",
        "warmed_up_twice_as_long steps_of_an_epoch_too_few rate_scaled_by_processes "
        "rate_of_another_group_from_step_five",
    ),
    *_inside("evaluation", "evaluation", "third", "evaluated_with_a_stale_head evaluated_in_fp64"),
    *_inside("nondeterminism", "nondeterminism", "third", "rows_by_hash gradients_raced"),
)

_THIRD_CONTROLS: tuple[Entry, ...] = (
    *_inside("control", "", "third", "another_release_of_numpy gradients_scaled_and_unscaled batches_copied"),
)


@dataclass(frozen=True)
class HeldOut:
    """Held-out set, with the commit that fixed its expected causes before the run."""

    number: int
    written_in: str
    faults: tuple[Entry, ...]
    controls: tuple[Entry, ...]
    seen: bool
    """The judge was mended with it in sight: its entries are part of the catalogue since."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Return faults, then controls."""
        return (*self.faults, *self.controls)


SETS = (
    HeldOut(1, "dffde8d", _FIRST, _FIRST_CONTROLS, seen=True),
    HeldOut(2, "66f8678", _SECOND, _SECOND_CONTROLS, seen=False),
    HeldOut(3, "384e3b7", _THIRD, _THIRD_CONTROLS, seen=True),
    HeldOut(4, "d692413", FOURTH, FOURTH_CONTROLS, seen=False),
    HeldOut(5, "936849f", FIFTH, FIFTH_CONTROLS, seen=False),
    HeldOut(6, "b73f79d", SIXTH, SIXTH_CONTROLS, seen=False),
    HeldOut(7, "243d045", SEVENTH, SEVENTH_CONTROLS, seen=False),
    HeldOut(8, "899d8b5", EIGHTH, EIGHTH_CONTROLS, seen=False),
    HeldOut(9, "d5bf4aa", NINTH, NINTH_CONTROLS, seen=False),
    HeldOut(10, "801d66a", TENTH, TENTH_CONTROLS, seen=False),
    HeldOut(11, "1dca3cb", ELEVENTH, ELEVENTH_CONTROLS, seen=False),
    HeldOut(12, "824dfe2", TWELFTH, TWELFTH_CONTROLS, seen=False),
    HeldOut(13, "f7eca2e", THIRTEENTH, THIRTEENTH_CONTROLS, seen=False),
)
"""The second was written once the judge had been mended with the first in sight."""
