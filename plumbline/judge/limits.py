"""Limits of the judge, each with its reason; `docs/MATH.md` derives those of rounding.

The limits of throughput stand in `gates/`, those of the history in `plumbline/history/`.
"""

from __future__ import annotations

from plumbline.schema.spec import Precision

# Rounding of tensors.

FACTOR = 8.0
"""Limit of a rounding error in units of the measured envelope. Few seeds measure the envelope, and a sketch its errors
within 1.5 times; kernels of another machine reached 0.36 of the limit, TF32 100 times."""

DOUBLING_STEPS = 9.0
"""Steps in which rounding differences double."""

MANTISSA_BITS: dict[Precision, int] = {"fp64": 52, "fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7}
"""Bits of mantissa that each format keeps."""

UNIT: dict[Precision, float] = {precision: 2.0**-bits for precision, bits in MANTISSA_BITS.items()}
"""One unit in the last place of the operands."""

FLOOR_UNITS: dict[str, float] = {"forward": 40.0, "gradient": 400.0, "weight": 400.0, "loss": 40.0, "norm": 400.0}
"""Floors in those units: 40 are 4.8e-6 in fp32, between the worst benign error seen (4e-7) and the least harmful
one (6e-5). A gradient has passed through twice as many operations and cancellations, a weight through Adam's
division."""

COARSE_UNITS = 4.0
"""In half precision the units are themselves as large as the harmful errors of fp32; their floors are these units."""

ROUNDING_ONLY = 0.5
"""A tensor at this relative distance from its own fp64 run has less than one correct bit. The gradient of attention's
key bias is zero by mathematics: two kernels differ there by any factor. No number format in use rounds a real tensor
by half of its size (bf16 rounds one operation by 2^-8)."""

PRODUCTION_FACTOR = 4.0
"""Limit of an error at production settings in units of the error of the plain model rounded to the same format. Kernels
round at up to three times as many places (a factor of 1.7), and sketches add up to 1.5 on each side."""

MOST_IN_PRODUCTION = {"forward": 0.25, "loss": 0.5, "gradient": 1.0}
"""Maximum limits at production settings: a fault that also reaches the rounded model must not vouch for itself. An
output that is a quarter wrong is not rounded (bf16: 0.005 was measured), nor is a gradient as wrong as one that is
zero."""

CLIPPED_FLOORS = 4.0
"""Maximum deviation of a clipped norm at production settings, in units of the norm's floor in fp32."""

HEAD = 8
"""Minimum ratio of the width of a head's input to that of its output. A feed-forward layer narrows 4 times, to hundreds
of features, which are enough to measure an envelope; a head narrows to a few classes."""

# Number formats.

OWN_SHARE = 0.3
"""A run at least this share of the difference away from its own fp64 run explains the difference by rounding."""

FEWER_BITS = 3
"""Minimum number of bits by which number formats differ: those between the closest formats, bf16 and fp16. A different
formula may round away one or two; a product by one is exact."""

# Gradients, updates and learning rates.

SAME_RATIO = 1e-3
"""Gradients were scaled if they differ by a single factor, up to this residual."""

SAME_RATE = 1e-12
"""Maximum relative difference of equal learning rates: the last bits of a few fp64 operations."""

STEPS_OF_A_RATE = 3
"""One step cannot distinguish a learning rate from Adam's bias correction, which scales the first update. Later steps
start from weights that differ: factors measured on a rate of 1.1 stay within 0.3% for three steps and within 3% for
twelve."""

SAME_FACTOR = 0.02
"""Maximum variation of the updates' factor from step to step. Gradients separate as weights do, by about the
learning rate; a bias correction off by one step varies by 20% and more between the first two steps."""

HIGHEST_LOSS = 100.0
"""Maximum of a loss in units of the largest loss of the reference's curve, also where rounding has separated them."""

# Rows of a permuted dataset.

SHARE_OF_EXPECTED = 0.5
"""Minimum share of the rows expected after a permutation."""

COPIES = 0.25
"""Maximum share of repeated rows among moved rows; more means copied content, not a different order."""

LABELS_FOLLOW = 0.9
"""Minimum share of the texts found that kept their labels. A permutation moves whole rows: only repeated texts with
different labels lower the share. Where texts alone move, chance keeps the labels, half of them of two classes."""

MIN_EXPECTED = 4.0
"""Minimum expected number of rows; below it, chance decides."""

# Evaluations.

EXACT_ACCURACY = 1e-9
"""Rounding of an accuracy, a quotient of two whole numbers."""

FLIPS = 64.0
"""Maximum share of hidden tokens whose two likeliest answers are closer than the rounding, in units of the logits'
relative limit."""

# Portable bits.

ORDER = 1e-12
"""Maximum relative effect of a different order of products on outputs and gradients. A product of two
slices keeps 42 bits of a row at 768 columns, 2e-13. Seen: 2.5e-14; LayerNorm's eps 1.01e-12 instead of 1e-12: 5e-12."""

ORDER_OF_ONE_SLICE = 2.5e-6
"""The same for a step whose products have a single slice of 21 bits at 768 columns: as for two slices, five times the
last bit, 2^-21. The legs seldom differ by so much: a difference of 1e-16 must first move an operand across a rounding
limit of its slice. Seen: 8e-7."""

ORDER_OF_UPDATE = 2e-15
"""The same for a weight after its update from an equal gradient: a few fp64 operations. Seen: 4e-16."""

SMALL_GRADIENT = 1e-3
"""A gradient below this share of the largest, such as a mathematical zero, is measured relative to the largest."""

# Experiments.

VANISHED = 0.01
"""Maximum share of a rounding difference that fp64 leaves. Rounding shrinks a million times."""

EXACT_PLACE = 1e-12
"""Maximum difference of two fp64 runs at the place of a rounding difference, if fp64 reaches all of its operations. A
difference in a later step is then no rounding, also far below the limits of the spec's precision."""

CLOSER = 0.25
"""A difference below the envelope has disappeared if at most this share is left."""

STEPS_AFTER = 2
"""Steps compared after the first divergence, so that a restored value shows in the weights and in later steps."""

STEPS_TRACED = 4
"""The step before the first difference, the step itself, and two more that show its consequences."""

MOST_KINDS = 3
"""Maximum number of module classes whose outputs are imposed at once; more are most of the forward pass."""

TO_WIDEN = 2
"""Experiments that a wider intervention costs: the reference's capture, and the candidate with it."""

MOST_LOST = 1
"""Maximum number of experiments of one drift that are repeated after an infrastructure failure."""
