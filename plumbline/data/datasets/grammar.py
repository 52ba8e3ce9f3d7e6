"""Seeded generator of product reviews, with a known best achievable accuracy.

A review has a mood and one, three or five opinions, each of which agrees with the mood most of the time. Its *score* is
the number of good opinions minus the number of bad opinions: never zero, and readable from the text. The label is the
sign of the score, flipped at a known rate that depends on the score's size. So the best model predicts the sign, and is
wrong exactly as often as labels are flipped.

Row `i` is a function of the seed and of `i`, drawn from integers of the Philox counter alone: the same bytes on every
machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import comb

import numpy as np

from plumbline.data.datasets.rows import Row

AGREEMENT = Fraction(5, 6)
"""Probability that an opinion agrees with the review's mood."""
OPINIONS = (1, 3, 3, 5)
"""The number of opinions, each entry equally likely."""
FLIP_RATES = {1: Fraction(1, 8), 3: Fraction(1, 32), 5: Fraction(1, 64)}
"""Probability of a flipped label, by the score's distance from zero."""
NEGATION = Fraction(1, 32)
"""Probability of `not` with the opposite opinion: small, so that a small model learns within a hundred steps."""

GOOD = (
    "great", "excellent", "solid", "reliable", "bright", "quiet", "sturdy", "smooth", "superb", "pleasant",
    "accurate", "responsive", "flawless", "handy", "generous", "crisp",
)  # fmt: skip
BAD = (
    "poor", "terrible", "flimsy", "unreliable", "dim", "noisy", "fragile", "rough", "awful", "annoying",
    "inaccurate", "sluggish", "broken", "clumsy", "stingy", "blurry",
)  # fmt: skip
_ADVERBS = ("really", "quite", "very", "simply", "surprisingly", "honestly", "truly", "rather")
_ASPECTS = (
    "battery", "screen", "handle", "motor", "keyboard", "hinge", "cable", "manual", "software", "packaging",
    "camera", "strap", "lid", "filter", "button", "speaker", "charger", "finish", "zip", "warranty",
)  # fmt: skip
_PRODUCTS = (
    "kettle", "laptop", "headset", "backpack", "blender", "drill", "monitor", "toaster", "tent", "watch",
    "printer", "lamp", "router", "vacuum", "tablet", "bicycle",
)  # fmt: skip
_HEADS = ("Vor", "Kel", "Zan", "Mir", "Tol", "Bex", "Qua", "Lum", "Ost", "Fen", "Dra", "Hal")
_TAILS = ("tek", "lux", "nova", "dyne", "wick", "ano", "ford", "ix", "ora", "um")
_PLACES = ("Lisbon", "Oslo", "Denver", "Kyoto", "Lagos", "Leeds", "Quito", "Perth", "Gdansk", "Nairobi")
_TIMES = ("days", "weeks", "months")
_OPENINGS = (
    "I bought this {product} from {brand} {number} {time} ago.",
    "My {brand} {product} arrived in {place} after {number} {time}.",
    "The {brand} {product} was a present from a friend in {place}.",
    "This is my second {product} by {brand}, model {model}.",
)
_CLAUSES = ("The {aspect} is {opinion}.", "I find the {aspect} {opinion}.", "Its {aspect} seems {opinion}.")
_CLOSINGS = (
    "I paid {price} dollars for it.",
    "We use it about {number} times a week.",
    "A spare {aspect} came in the box.",
    "Ordered again for the office in {place}.",
)

_DRAWS = 128
"""Number of random integers per review, more than any review uses."""
_STREAM = 0x706C756D


class _Dice:
    """Reproducible random integers for one generated row."""

    def __init__(self, seed: int, row: int) -> None:
        bits = np.random.Philox(counter=[0, row, 0, 0], key=[seed, _STREAM])
        self._numbers = iter([int(number) for number in bits.random_raw(_DRAWS)])

    def below(self, bound: int) -> int:
        return next(self._numbers) % bound

    def chance(self, rate: Fraction) -> bool:
        return self.below(rate.denominator) < rate.numerator

    def pick(self, choices: Sequence[str]) -> str:
        return choices[self.below(len(choices))]

    def fill(self, pattern: str, opinion: str = "") -> str:
        """Fill in `pattern` with random words, always drawing all of them."""
        return pattern.format(
            product=self.pick(_PRODUCTS),
            brand=self.pick(_HEADS) + self.pick(_TAILS),
            aspect=self.pick(_ASPECTS),
            place=self.pick(_PLACES),
            time=self.pick(_TIMES),
            number=2 + self.below(10),
            model=f"{self.pick('ABCDEFGH')}{100 + self.below(900)}",
            price=10 + self.below(490),
            opinion=opinion,
        )


def _opinion(dice: _Dice, *, good: bool) -> str:
    negated = dice.chance(NEGATION)
    word = dice.pick(GOOD if good != negated else BAD)
    adverb = dice.pick(_ADVERBS)
    if negated:
        return f"not {word}"
    return f"{adverb} {word}" if dice.below(2) else word


def review(seed: int, row: int) -> Row:
    """Return generated review number `row` for `seed`."""
    dice = _Dice(seed % 2**64, row)
    mood = dice.below(2) == 1
    signs = [mood == dice.chance(AGREEMENT) for _ in range(OPINIONS[dice.below(len(OPINIONS))])]
    sentences = [dice.fill(dice.pick(_OPENINGS))]
    sentences += [dice.fill(dice.pick(_CLAUSES), _opinion(dice, good=sign)) for sign in signs]
    if dice.below(2):
        sentences.append(dice.fill(dice.pick(_CLOSINGS)))
    score = sum(1 if sign else -1 for sign in signs)
    flipped = dice.chance(FLIP_RATES[abs(score)])
    return Row(text=" ".join(sentences), label=int((score > 0) != flipped))


def reviews(seed: int, start: int, count: int) -> Iterator[Row]:
    """Yield generated reviews `start` to `start + count` for `seed`."""
    return (review(seed, row) for row in range(start, start + count))


def best_accuracy() -> float:
    """Return the accuracy of the best possible model on generated reviews."""
    error = Fraction(0)
    for opinions in OPINIONS:
        for agreeing in range(opinions + 1):
            likely = comb(opinions, agreeing) * AGREEMENT**agreeing * (1 - AGREEMENT) ** (opinions - agreeing)
            error += likely * FLIP_RATES[abs(2 * agreeing - opinions)] / len(OPINIONS)
    return float(1 - error)
