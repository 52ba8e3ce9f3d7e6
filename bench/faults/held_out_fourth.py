"""Fourth held-out set: written without reading the judge, after reports on public trackers.

Sources: the bugs of OrderLab/TrainCheck-Evaluation-Workloads, changes of torchtitan's golden losses, and issues of
torch, transformers, tokenizers, accelerate, DeepSpeed, Megatron-LM, fairseq and others, named in the injectors.
"""

from __future__ import annotations

from bench.faults.catalogue import Entry

__all__ = ["FOURTH", "FOURTH_CONTROLS"]


def _inside(family: str, expected: str, module: str, names: str, workload: str = "cls") -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), family, expected, inject=f"held_out_fourth_{module}.{name}", workload=workload)
        for name in names.split()
    ]


def _files(family: str, expected: str, names: str) -> list[Entry]:
    return [
        Entry(name.replace("_", "-"), family, expected, alter=f"held_out_fourth_data.{name}") for name in names.split()
    ]


def _two(name: str, expected: str, *inject: str, alter: str = "") -> Entry:
    modules = ",".join(f"held_out_fourth_{item}" for item in inject)
    return Entry(name, "two", expected, modules, f"held_out_fourth_data.{alter}" if alter else "")


FOURTH: tuple[Entry, ...] = (
    *_files(
        "data",
        "data.content",
        "texts_cut_by_a_column texts_read_as_missing characters_outside_ascii_dropped texts_cut_at_the_comma "
        "evaluation_texts_of_an_older_release",
    ),
    *_files("data", "data.labels", "label_column_sorted evaluation_labels_inverted"),
    *_inside("data", "data.labels", "data", "labels_of_the_batch_before"),
    *_inside(
        "data",
        "data.order",
        "data",
        "shuffled_in_a_buffer grouped_by_length shards_interleaved processes_take_contiguous_halves",
    ),
    *_files(
        "tokenizer",
        "tokenization",
        "chinese_characters_not_split first_token_twice added_token_splits_words continuation_prefix_lost digits_split",
    ),
    *_inside("tokenizer", "tokenization", "data", "separator_cut_off ids_in_eight_bits special_tokens_masked"),
    *_inside(
        "init",
        "weights.init",
        "model",
        "vocabulary_rows_shifted positions_shifted_by_two feed_forward_shards_exchanged query_rows_permuted "
        "normal_truncated output_projections_scaled_down new_tokens_start_at_the_mean",
    ),
    *_inside(
        "init",
        "model.architecture",
        "model",
        "third_class adapters_injected projections_fused norm_added_before_the_pooler",
    ),
    *_inside("init", "model.architecture", "model", "decoder_bias_untied", "mlm"),
    *_inside("rng", "rng", "model", "seeded_before_the_model python_draw_per_batch noise_on_embeddings layers_dropped"),
    *_inside("rng", "rng", "model", "more_tokens_hidden", "mlm"),
    *_inside(
        "precision",
        "precision",
        "precision",
        "feed_forward_in_fp8 tf32_in_the_backward_pass partial_sums_in_bf16 parameters_in_bf16_for_the_forward_pass "
        "attention_weights_in_fp16 embeddings_added_in_bf16",
    ),
    *_inside(
        "operator",
        "operator",
        "operators",
        "sliding_window packed_rows_attend_to_each_other first_head_shares_its_keys mask_inverted "
        "heads_not_transposed keys_of_the_layer_below softmax_to_base_two second_block_not_rescaled "
        "layer_norm_without_centring norm_before_the_residual norm_over_tokens_too last_layer_skipped positions_wrap "
        "tile_remainder_not_written",
    ),
    *_inside("kernel", "kernel", "operators", "columns_summed_in_reverse rows_multiplied_one_by_one"),
    *_inside(
        "loss",
        "loss",
        "loss",
        "softmax_applied_twice squared_error hinge_loss first_class_taken_for_padding hardest_rows_alone "
        "weights_penalised",
    ),
    *_inside("loss", "loss", "loss", "masked_tokens_alone last_chunk_lost", "mlm"),
    *_inside(
        "gradient",
        "gradient",
        "gradients",
        "gradients_of_the_step_before small_gradients_dropped gradients_as_signs gradient_lost_in_transfer "
        "gelu_backward_by_tanh norm_backward_without_its_means scores_without_gradient "
        "micro_batches_weighted_by_tokens",
    ),
    *_inside("gradient", "gradient", "gradients", "token_table_counted_twice clipped_after_each_micro_batch", "clip"),
    *_inside("gradient", "gradient", "gradients", "decoder_gradient_lost", "mlm"),
    *_inside(
        "optimizer",
        "optimizer",
        "updates",
        "trust_ratio second_moment_factored embeddings_not_decayed head_missing_from_the_optimizer optimizer_of_a_copy "
        "bias_correction_counts_twice rows_without_gradient_skipped states_exchanged_by_a_restart "
        "first_moment_in_eight_bits epsilon_before_the_correction",
    ),
    *_inside(
        "schedule",
        "schedule",
        "updates",
        "inverse_square_root stepped_every_second_update one_step_at_the_full_rate decay_to_a_tenth "
        "constant_then_steep biases_at_twice_the_rate",
    ),
    *_inside(
        "evaluation",
        "evaluation",
        "evaluation",
        "averaged_weights_evaluated lowest_score_predicted answers_of_two_processes_interleaved "
        "answers_of_the_first_process_alone smoothed_evaluation_loss evaluated_as_second_texts",
    ),
    *_inside("evaluation", "evaluation", "evaluation", "hidden_tokens_drawn_anew", "mlm"),
    *_inside(
        "nondeterminism",
        "nondeterminism",
        "controls",
        "vocabulary_from_a_set split_attention_races second_moment_not_cleared updates_overwritten",
    ),
    _two(
        "first-token-and-decay",
        "tokenization + optimizer",
        "updates.embeddings_not_decayed",
        alter="first_token_twice",
    ),
    _two(
        "interleaved-rows-and-answers",
        "data.order + evaluation",
        "data.shards_interleaved",
        "evaluation.answers_of_two_processes_interleaved",
    ),
    _two(
        "window-and-token-weights",
        "operator + gradient",
        "operators.sliding_window",
        "gradients.micro_batches_weighted_by_tokens",
    ),
    _two(
        "positions-and-restart",
        "weights.init + schedule",
        "model.positions_shifted_by_two",
        "updates.one_step_at_the_full_rate",
    ),
    _two(
        "second-softmax-and-moments",
        "loss + optimizer",
        "loss.softmax_applied_twice",
        "updates.states_exchanged_by_a_restart",
    ),
    _two(
        "labels-and-partial-sums",
        "data.labels + precision",
        "precision.partial_sums_in_bf16",
        alter="label_column_sorted",
    ),
    _two(
        "fp8-and-decay-to-a-tenth",
        "precision + schedule",
        "precision.feed_forward_in_fp8",
        "updates.decay_to_a_tenth",
    ),
)

FOURTH_CONTROLS: tuple[Entry, ...] = (
    *_inside(
        "control",
        "",
        "controls",
        "cleared_after_the_update weights_logged collector_off batches_from_a_thread optimizer_saved_and_loaded "
        "projections_in_one_product embeddings_added_from_the_right norm_of_a_single_vector "
        "embedding_gradient_by_products reproducible_mkl",
    ),
)
