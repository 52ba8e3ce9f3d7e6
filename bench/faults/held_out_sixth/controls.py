"""Benign changes: settings of a platform, rewritten files, and releases that round differently."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_sixth.entries import files, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    *files(
        "control",
        "",
        "tokens",
        "tokenizer_file_stores_padding vocabulary_listed_in_reverse normalizer_in_a_sequence",
    ),
    *inside(
        "control",
        "",
        "controls",
        "releases_of_the_data_libraries release_of_tokenizers release_of_the_operating_system "
        "container_image_renamed memory_not_filled operations_in_three_threads",
    ),
    *inside(
        "control",
        "",
        "releases",
        "attention_by_einsum heads_in_a_loop embeddings_stacked_and_summed hidden_scores_at_minus_ten_thousand "
        "norm_statistics_of_two_halves linear_in_blocks_of_outputs linear_starts_from_its_bias "
        "loss_over_one_hot_labels moments_by_interpolation softmax_summed_in_reverse",
    ),
    *inside("control", "", "releases", "clipping_norm_in_fp64", "clip"),
    *inside("control", "", "restarts", "learn_restarted_from_the_checkpoint", "learn"),
    Entry("small-cublas-workspace", "control", "", environment={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}),
    Entry("memory-arenas", "control", "", environment={"MALLOC_ARENA_MAX": "2"}),
)
