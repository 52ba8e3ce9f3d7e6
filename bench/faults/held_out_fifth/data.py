"""Faults of rows, labels, order and tokens, with their causes."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_fifth.entries import files, inside

__all__ = ["DATA"]

DATA: tuple[Entry, ...] = (
    *files(
        "data",
        "data.content",
        "data",
        "texts_compatibility_normalised last_character_cut markup_left_in words_in_reverse "
        "labels_written_into_the_texts evaluation_rows_in_the_training_split digits_anonymised",
    ),
    *inside("data", "data.content", "data", "texts_read_one_row_late"),
    *files(
        "data",
        "data.labels",
        "data",
        "labels_joined_by_first_word labels_of_long_texts_missing label_column_reversed",
    ),
    *inside("data", "data.labels", "data", "labels_sorted_in_the_batch labels_of_the_first_half_twice"),
    *inside(
        "data",
        "data.order",
        "data",
        "drawn_with_replacement batches_overlap_by_a_row shards_in_file_order second_half_first batches_strided "
        "sorted_by_label_in_windows",
    ),
    *files(
        "tokenizer",
        "tokenization",
        "tokens",
        "no_pre_tokenizer vocabulary_sorted capitals_split punctuation_removed separator_in_the_second_segment "
        "numbers_read_as_one_token",
    ),
    *inside(
        "tokenizer",
        "tokenization",
        "tokens",
        "ids_shifted_behind_an_insertion mask_reversed padding_in_the_second_segment head_and_tail_kept",
    ),
)
