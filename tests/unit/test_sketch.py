"""Sketches recover relative errors within their stated factor."""

from __future__ import annotations

import numpy as np
import pytest

from plumbline.sketch import ERROR_FACTOR, relative_error, sketch, small_sketch

SHAPES = [
    (30522, 8), (512, 128), (128, 512), (768,), (2, 768), (16, 128, 64), (8, 64, 256), (4, 12, 32, 32), (64, 2),
    (1024, 64),
]  # fmt: skip


def structured(generator: np.random.Generator, shape: tuple[int, ...], kind: int) -> np.ndarray:
    """Return errors like those of training: everywhere, or in columns, elements or rows."""
    error = generator.standard_normal(shape)
    if kind == 1 and len(shape) > 1:
        error *= np.arange(shape[-1]) % 16 == min(3, shape[-1] - 1)
    if kind == 2:
        error *= generator.random(shape) < 0.05
    if kind == 3 and len(shape) > 1:
        error *= np.arange(shape[-1]) < max(1, shape[-1] // 4)
    return error


def test_errors_from_a_ten_millionth_to_one_on_a_thousand_tensors() -> None:
    generator = np.random.Generator(np.random.Philox(5))
    ratios = []
    for place in range(1000):
        shape = SHAPES[place % len(SHAPES)]
        wanted = 10 ** generator.uniform(-7, 0)
        values = generator.standard_normal(shape)
        error = structured(generator, shape, place % 4)
        error *= wanted * np.linalg.norm(values) / np.linalg.norm(error)
        norm = float(np.linalg.norm(values))
        result = relative_error(sketch(values), sketch(values + error), norm)
        ratios.append(result / wanted)
    assert max(ratios) <= ERROR_FACTOR
    assert min(ratios) >= 1 / ERROR_FACTOR
    assert 0.98 < np.mean(ratios) < 1.02


def test_a_change_of_one_element_is_seen_at_its_size() -> None:
    values = np.ones((300, 500), np.float32)
    other = values.copy()
    other[123, 45] += 0.5
    error = relative_error(sketch(values), sketch(other), float(np.linalg.norm(values)))
    assert error == pytest.approx(0.5 / np.sqrt(values.size), rel=1e-6)


def test_tensors_longer_than_a_block_of_the_hash() -> None:
    generator = np.random.Generator(np.random.Philox(6))
    values = generator.standard_normal(3_000_017)
    other = values * (1 + 1e-4)
    result = relative_error(sketch(values), sketch(other), float(np.linalg.norm(values)))
    assert 1e-4 / ERROR_FACTOR < result < 1e-4 * ERROR_FACTOR
    repeated = np.tile(generator.standard_normal(1_000_003), 3)
    assert np.linalg.norm(sketch(repeated)) == pytest.approx(np.linalg.norm(repeated), rel=0.5)


def test_a_sketch_is_known_to_the_last_bit() -> None:
    """Other platforms hold records made today: the hash must never change."""
    expected = sketch(np.arange(8, dtype=np.float32))
    assert np.flatnonzero(expected).tolist() == [3, 13, 22, 34, 41, 55, 60]
    assert expected[expected != 0].tolist() == [2, 4, 6, -7, 5, 1, -3]


def test_a_number_that_is_not_finite_is_no_small_error() -> None:
    fine, broken = sketch(np.ones(10)), sketch(np.array([1.0, np.nan]))
    assert relative_error(fine, broken) is None
    assert relative_error(broken, broken) is None
    assert relative_error(fine, fine, float("nan")) is None
    assert relative_error(np.zeros(64), fine) is None
    assert relative_error(np.zeros(64), np.zeros(64)) == 0


def test_a_small_sketch_recovers_a_difference_within_a_factor_of_three() -> None:
    generator = np.random.default_rng(5)
    for size in (10, 1000, 100_000):
        values = generator.normal(size=size)
        other = values + 1e-9 * generator.normal(size=size)
        error = np.linalg.norm(small_sketch(values) - small_sketch(other)) / np.linalg.norm(values - other)
        assert 1 / 3 < error < 3
    assert small_sketch(np.ones(3)).shape == (8,)
