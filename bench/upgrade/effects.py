"""What the guilty packages of the benchmark do: code that changes one part of training, as a real release would."""

from __future__ import annotations

_HOOK = """
def _plumbline_bench():
    import sys

    class After:
        def find_spec(self, name, path=None, target=None):
            if name == {trigger!r} and self in sys.meta_path:
                # A new list: the import goes through the old one, and would skip the next package's hook.
                sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
                act()
            return None

    def act():
{body}

    sys.meta_path.insert(0, After())


_plumbline_bench()
"""


def hook(body: str, trigger: str = "plumbline.train.probe") -> str:
    """Return code that runs `body` just before the module `trigger` is imported.

    The package that contains the code has to be imported before `trigger`, or `body` never runs.
    """
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return _HOOK.format(trigger=trigger, body=lines)


def gated(body: str, package: str, comparison: str, version: str) -> str:
    """Return `body` behind a condition on the version of another package: `==` or `!=` this one."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"from importlib.metadata import version\nif version({package!r}) {comparison} {version!r}:\n{lines}\n"


GELU = """
import torch
gelu = torch.nn.functional.gelu
torch.nn.functional.gelu = lambda x, approximate="none": gelu(x, approximate="tanh")
"""
_BF16_LINEAR = """
import torch
linear = torch.nn.functional.linear
torch.nn.functional.linear = lambda x, w, b=None: linear(x, w, b).to(torch.bfloat16).to(x.dtype)
"""
_DROPOUT = """
import torch
init = torch.nn.Dropout.__init__
def other(self, p=0.5, inplace=False):
    init(self, p * 1.5, inplace)
torch.nn.Dropout.__init__ = other
"""
_EVALUATION = """
import torch
gelu = torch.nn.functional.gelu
def other(x, approximate="none"):
    return gelu(x, approximate="none" if torch.is_grad_enabled() else "tanh")
torch.nn.functional.gelu = other
"""
_INITIALISATION = """
import sys
if "plumbline.train.weights" in sys.orig_argv:
    import numpy
    cos = numpy.cos
    numpy.cos = lambda x: cos(x) * (1 + 1e-6)
"""
_TOKENIZER = """
from tokenizers import trainers
real = trainers.WordPieceTrainer
trainers.WordPieceTrainer = lambda **keys: real(**{**keys, "vocab_size": keys["vocab_size"] - 8})
"""
_DATASET = """
import pyarrow.parquet as pq
real = pq.ParquetFile.iter_batches
def other(self, *arguments, **keys):
    import pyarrow as pa
    for batch in real(self, *arguments, **keys):
        if "label" in batch.schema.names and "id" not in batch.schema.names:
            place = batch.schema.names.index("label")
            labels = [1 - value for value in batch.column(place).to_pylist()[:1]] + batch.column(place).to_pylist()[1:]
            batch = batch.set_column(place, "label", pa.array(labels, batch.column(place).type))
        yield batch
pq.ParquetFile.iter_batches = other
"""
_LOSS = """
import torch
loss = torch.nn.functional.cross_entropy
torch.nn.functional.cross_entropy = lambda *a, **k: loss(*a, **{**k, "label_smoothing": 0.01})
"""
_CLIP = """
import torch
clip = torch.nn.utils.clip_grad_norm_
torch.nn.utils.clip_grad_norm_ = lambda p, m, **k: clip(p, m * 0.5, **k)
"""
_NORM = """
import torch
norm = torch.nn.functional.layer_norm
torch.nn.functional.layer_norm = lambda x, s, w=None, b=None, eps=1e-5: norm(x, s, w, b, 1e-6)
"""
FLAKY_COUNT = "PLUMBLINE_BENCH_FLAKY"
"""Names the file that counts the trainings of the flaky package: it acts in two of three, from the first one on."""
_FLAKY = f"""
import os
with open(os.environ[{FLAKY_COUNT!r}], "a+b") as count:
    acts = count.tell() % 3 != 1
    count.write(b".")
if acts:
    import torch
    gelu = torch.nn.functional.gelu
    torch.nn.functional.gelu = lambda x, approximate="none": gelu(x, approximate="tanh")
"""
_SLOW = """
import time, torch
forward = torch.nn.Module.__call__
def slow(self, *arguments, **keys):
    if self.training and type(self).__name__.startswith("BertFor"):
        now = time.perf_counter()
        last = getattr(self, "_bench_last", None)
        if last is not None:
            end = now + 0.08 * (now - last)
            while time.perf_counter() < end:
                pass
        object.__setattr__(self, "_bench_last", time.perf_counter())
    return forward(self, *arguments, **keys)
torch.nn.Module.__call__ = slow
"""

EFFECTS: dict[str, str] = {
    "operator": hook(GELU),
    "precision": hook(_BF16_LINEAR),
    "dropout": hook(_DROPOUT),
    "evaluation": hook(_EVALUATION),
    "initialisation": hook(_INITIALISATION, "plumbline.data.staging.order"),
    "tokenizer": hook(_TOKENIZER, "plumbline.data.datasets.tokenizer"),
    "dataset": hook(_DATASET, "plumbline.data.datasets.build"),
    "loss": hook(_LOSS),
    "gradient": hook(_CLIP),
    "norm": hook(_NORM),
    "flaky": hook(_FLAKY),
    "slow": hook(_SLOW, "plumbline.train.speed"),
    "import": """raise ImportError("cannot import name 'gone' from 'torch'")\n""",
}
