"""Faults of rows, labels, order and tokens, with their causes."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_sixth.entries import files, inside

__all__ = ["DATA"]

DATA: tuple[Entry, ...] = (
    *files(
        "data",
        "data.content",
        "data",
        "characters_written_as_references stop_words_removed capitals_cleaned_away a_shard_of_an_older_release",
    ),
    *files(
        "data",
        "data.labels",
        "data",
        "missing_labels_filled_forward unlabelled_shard_left_at_zero labels_joined_by_numbers_as_texts",
    ),
    *inside("data", "data.labels", "data", "labels_popped_from_the_end"),
    *inside(
        "data",
        "data.order",
        "data",
        "longest_batch_first long_rows_skipped sampler_counts_micro_batches rows_rotated_by_a_ring_buffer",
    ),
    *files(
        "tokenizer",
        "tokenization",
        "tokens",
        "byte_level_pre_tokenizer punctuation_joined_to_words vocabulary_read_as_latin_1 "
        "tokenizer_trained_on_other_rows separator_between_sentences",
    ),
    *inside("tokenizer", "tokenization", "tokens", "stored_maximum_wins padded_before_the_separator"),
)
