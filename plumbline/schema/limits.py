"""Table of all limits that can change a verdict, cause or experiment.

Each has its reason. `docs/MATH.md` derives those of rounding; a suite's own limits are its `[gates]`. What follows from
a definition is not a limit: bits of a number format, quantiles, sizes of what is read or shown.
"""

from __future__ import annotations

# Equality.

EXACT = 1e-12
"""Maximum relative difference of one formula computed twice in fp64, by any order of its operations: of learning
rates, accuracies, two fp64 runs, and windows. Seen: 5.2e-14 (a gradient at the eighth step); LayerNorm's eps 1.01e-12
instead of 1e-12: 5e-12."""

MOST = 0.5
"""Minimum share that is most of a whole: of a loss that load, a quota or a device has to explain to be its cause, of
the samples that see an additional process of others on a GPU, and of the rows expected after a permutation."""

STEPS_AFTER = 2
"""Steps after a difference that show whether a restored value removes it, from the weights and from later steps."""

# Rounding of tensors.

FACTOR = 8.0
"""Units in the last place of fp32 of a step's largest gradient, below which a gradient may be rounding only."""

DOUBLING_STEPS = 9.0
"""Steps in which rounding differences double."""

FLOOR_UNITS: dict[str, float] = {"forward": 40.0, "gradient": 400.0, "optimizer": 400.0, "loss": 40.0, "norm": 400.0}
"""Floors in those units: 40 are 4.8e-6 in fp32, between the worst benign error seen (4e-7) and the least harmful one
(6e-5). A gradient has passed through twice as many operations and cancellations, a weight through Adam's division."""

COARSE_UNITS = 4.0
"""In half precision the units are themselves as large as the harmful errors of fp32; their floors are these units."""

ROUNDING_ONLY = 0.5
"""A tensor at this relative distance from its own windows has less than one correct bit. The gradient of
attention's key bias is zero by mathematics: two kernels differ there by any factor. No number format in use rounds a
real tensor by half of its size (bf16 rounds one operation by 2^-8)."""

PRODUCTION_FACTOR = 4.0
"""Limit of a compiled tensor's distance from fp64 in units of the same without the compiler, and of a clipped norm in
units of its floor in fp32. Both round the same formula at up to three times as many places (a factor of 1.7), and are
single draws of it."""

# Proofs of native steps.

PROOF = {"sum": 4.0, "fp32": 16.0, "forward": 5.0, "loss": 3.0, "gradient": 8.0, "optimizer": 8.0, "draws": 7.0}
"""Limits of a tensor's distance from its definition, in roundings of its format. `sum`: in units of the root of a sum's
number of terms, in any order (seen: 0.6 on an H200, 2.5 over 8,192 rows). `fp32`: of a module's other operations (5).
By stage: of half precision (seen: 2.6 of an output, 4.7 of a gradient), and of an update in units of what its
operations round (0.3, fused 2.5). `draws`: of the elements that dropout kept, in SD: by chance once in 4 x 10^11."""

SQUARES = 0.0156
"""Roundings that a norm in fp32 may lose for each term of its longest sum, as squares are all positive. Seen on a CPU:
0.001 in gradients of a table of 32,768 words and in normal numbers, 0.014 in ten million equal ones."""

# Number formats.

FEWER_BITS = 3
"""Minimum number of bits by which number formats differ: those between the closest formats, bf16 and fp16. A different
formula may round away one or two; a product by one is exact."""

SCORE_BITS = 10
"""Most bits of attention's scores that can be measured: beyond, it is the exponential function that rounds."""

# Gradients.

SAME_RATIO = 1e-3
"""Gradients were scaled if they differ by a single factor, up to this residual."""

# Learning curves.

HIGHEST_LOSS = 100.0
"""Maximum of a loss in units of the largest loss of the reference's curve, also where rounding has separated them."""

# Rows of a permuted dataset.

COPIES = 0.25
"""Maximum share of repeated rows among moved rows; more means copied content, not a different order."""

LABELS_FOLLOW = 0.9
"""Minimum share of the texts found that kept their labels. A permutation moves whole rows: only repeated texts with
different labels lower the share. Where texts alone move, chance keeps the labels, half of them of two classes."""

MIN_EXPECTED = 4.0
"""Minimum expected number of rows; below it, chance decides."""

# Windows.

SMALL_GRADIENT = 1e-3
"""A gradient below this share of the largest, such as a mathematical zero, is measured relative to the largest."""

# Experiments.

VANISHED = 0.01
"""Maximum share of a rounding difference that fp64 leaves. Rounding shrinks a million times."""

CLOSER = 0.25
"""A difference within its limit has disappeared if at most this share is left."""

MOST_LOST = 1
"""Maximum number of experiments of one drift that are repeated after an infrastructure failure."""

# Causes of a slower run.

PHASE = 0.6
"""Minimum share of the lost time for a phase of the step to be named."""

SLOWER = 0.05
"""Minimum relative loss of a microbenchmark, a clock or the cores in use to count, whatever the run lost."""

SIGN = 0.25
"""Minimum increase of throttled samples, or of a disk's busy or waiting share, and minimum loss of a disk's read rate,
before and after, to be a sign. Disks vary by less."""

MORE_WORK = 1.5
"""Minimum increase of processor time that means more work per step: shared caches cost up to 1.47 times as much, as
measured beside 20 busy processes on two cores."""

TAKEN_TIME = 0.03
"""Minimum increase of the share of time that a training loses to others, to a quota, or to a lack of memory."""

TAKEN_CORES = 0.15
"""Minimum number of cores that others use in addition."""

ALL_CORES = 0.95
"""Minimum share of the cores in use, or stolen, for a machine that has none to give."""

# Nights.

SIDE_NIGHTS = 3
"""Minimum number of nights that show a level: on either side of a change, and newest ones that show a loss."""

LEAST_NIGHTS = 5
"""Minimum number of nights for a centre and a spread; of the newest ones beyond the anchor; and of those that rule a
loss out, which soon see its end."""

LAG_NIGHTS = 7
"""Number of newest nights left out of a growing reference, as they may contain a beginning loss; so many show one."""

FIRST_NIGHTS = 8
"""Number of first nights that are never left out: with fewer, the centre's own error hides a loss of 2 SD."""

OWN_NIGHTS = 10
"""Minimum number of nights of a level that know its spread, where an earlier level has one; length of the shortest
interval that is searched for changes. So many of the newest rule out a small loss."""

ENOUGH_NIGHTS = 20
"""Minimum number of nights for a trend, an autocorrelation and outer quantiles: fewer do not know their own noise. So
many are an anchor, show an open loss, have the software of a reference without a baseline, and an accuracy."""

MOST_NIGHTS = 60
"""Maximum number of nights of a reference: later ones, which may creep, never change its centre. So many of the newest
count for its spread, which a creep hardly changes."""

GAIN_NIGHTS = (10, 12, 14, 16, 18, 20, 25, 30, 40, 60)
"""Numbers of nights of a gain, or of an open call, on which it asks for an A/B: soon, then seldom, as a season would
ask every night."""

REACH_NIGHTS = 90
"""Number of newest nights that detectors and dates look at."""

FEW_NIGHTS = 24
"""Minimum length of a series for ranks to reach the level; a shorter one uses a t-test, which assumes normal noise."""

# Levels and sizes of tests over nights.

LEVEL = 0.01
"""Level of a change of level, and the largest level of an alarm, however few series there are."""

RULED_OUT = 1e-3
"""Level at which the newest nights rule out a loss."""

NOTICED = 4.0
"""Maximum size of a noticed loss, in SD, of which the nights must rule out half: a single night may be any, and a loss
of 2 SD behind it must not pass."""

ALPHA = 0.05
"""Level of an interval, of an equivalence, of reruns, which only save the more expensive A/B, and the largest of a
detection."""

WINSOR = 3.0
"""Maximum weight of a single night in a sum, in SD."""

LEAST_SPREAD = 0.5
"""Minimum spread of the nights before and after the beginning of a creep, in units of the reference's: that of few
nights may be too small by chance."""

HIGHEST_RHO = 0.9
"""Maximum autocorrelation that is assumed: nights that repeat each other further say nothing."""

EXPERIMENT_SHARE = 0.8
"""Share of tolerated alarms for experiments; the rest is for lasting losses without experiments."""

RESOLVING = 12.75
"""Blocks of an A/B that rule out half of a loss, as a root, in units of noise / loss: twice the quantiles of Student's
interval and of a power of 97.5% (8.5), and what the SD of four runs may be too small (1.5)."""

MOST_BLOCKS = 4
"""Maximum number of blocks of an A/B, in units of the least."""

LEAST_CHANGE = 0.005
"""Minimum relative change that counts, of a confirmed loss or of a phase in units of the step."""

LEAST_SD = 1e-3
"""Minimum SD of a night of a metric: smaller differences do not count."""

PART_SD = 1e-2
"""The same of a part of the time: slow steps, waits for data, and the time until the first step vary by more."""

# Planted faults of the canary.

CANARY_DROP = 1.2
"""Slowdown, in units of the smallest drop that the gate can call drift."""

CANARY_EPS = 5e-3
"""Relative change of a LayerNorm's output where its eps is wrong, as measured (docs/MATH.md)."""

# Batches.

BATCH_SECONDS = 45
"""Maximum wait for a batch of `data_workers`: it takes milliseconds, or never ends if shared memory is full."""
