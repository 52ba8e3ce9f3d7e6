"""Sketches recover relative errors within their stated factor."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from plumbline.schema.sketch import relative_error, sketch, small_sketch

ERROR_FACTOR = 1.5
"""Largest factor between an estimated error and the true one."""
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


@pytest.mark.long
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


_BLOCK = 1_000_003


def _digest(values: np.ndarray) -> str:
    """Return the digest of a sketch whose sums are exact."""
    return hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()[:16]


def test_every_code_of_the_first_block_and_of_later_blocks_is_known() -> None:
    """Sums of integers are exact, so that a digest of a sketch shows any change of any element's bucket or sign."""
    assert _digest(sketch(np.arange(_BLOCK, dtype=np.float64))) == "db215a96766b8bdf"
    assert _digest(sketch(np.arange(3 * _BLOCK + 17, dtype=np.float64))) == "b04ce691fb3cf1ad"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (0, {3: 3, 13: 5, 22: 7, 34: -8, 41: 6, 49: -1, 55: 2, 60: -4}),
        (1, {2: -3, 12: -5, 23: -7, 35: 8, 40: -6, 48: 1, 54: -2, 61: 4}),
        (2, {1: 2, 7: -1, 10: -4, 20: -8, 31: 6, 32: 7, 53: 3, 59: 5}),
        (3, {1: -1, 7: 2, 12: -4, 18: -8, 25: 6, 38: 7, 51: 3, 61: 5}),
    ],
)
def test_the_first_elements_of_each_block_have_their_buckets_and_signs(block: int, expected: dict[int, int]) -> None:
    values = np.zeros(3 * _BLOCK + 17, np.int8)
    values[block * _BLOCK : block * _BLOCK + 8] = np.arange(1, 9)
    result = sketch(values)
    assert {int(place): int(result[place]) for place in np.flatnonzero(result)} == expected


def test_a_sketch_follows_the_order_of_elements_and_not_their_type_or_place_in_memory() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    same = [values, np.asfortranarray(values), values.reshape(-1), *(values.astype(k) for k in (">f4", "f2", "i8"))]
    assert {_digest(sketch(each)) for each in same} == {"2d07c9d370c83909"}
    assert _digest(sketch(values.transpose(2, 0, 1))) == "47a71b93fd05e069"
    assert _digest(sketch(values[:, :, ::2])) == "4302d315b349c8c4"


def test_a_single_number_and_no_number_have_sketches() -> None:
    single, empty = sketch(np.array(3, np.float32)), sketch(np.zeros((0, 3)))
    assert (np.flatnonzero(single).tolist(), single.sum()) == ([49], -3.0)
    for result in (single, empty):
        assert (result.shape, result.dtype.name) == ((64,), "float64")
    assert not empty.any()


def test_a_small_sketch_is_known() -> None:
    assert small_sketch(np.arange(100.0)).tolist() == [20, -137, 288, 434, 44, -316, -178, 69]


@pytest.mark.parametrize(
    ("reference", "candidate", "norm", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], None, 0.0),
        ([3.0, 4.0], [6.0, 8.0], None, 1.0),
        ([3.0, 4.0], [6.0, 8.0], 20.0, 0.25),
        ([3.0, 4.0], [3.0, 2.0], 0.5, 4.0),
        ([3.0, 4.0], [3.0, 4.0], 0.0, 0.0),
        ([3.0, 4.0], [3.0, 5.0], 0.0, None),
        ([0.0, 0.0], [0.0, 5.0], 2.0, 2.5),
        ([3.0, 4.0], [3.0, 4.0], float("inf"), None),
        ([3.0, float("inf")], [3.0, 4.0], 5.0, None),
        ([3.0, 4.0], [float("nan"), 4.0], 5.0, None),
        ([3.0, 4.0], [3.0, 4.0, 5.0], 5.0, None),
    ],
)
def test_errors_between_small_sketches_are_exact(
    reference: list[float], candidate: list[float], norm: float | None, error: float | None
) -> None:
    assert relative_error(np.array(reference), np.array(candidate), norm) == error
