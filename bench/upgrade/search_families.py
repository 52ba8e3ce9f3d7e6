"""Whether releases of transformers build and compute the models of many families alike.

    python -m bench.upgrade.search_families ENVIRONMENT ...

Each environment builds small models, gives each parameter values that depend on its name alone, and computes one batch
with padding. Printed is what differs from the environment before: parameters by name, or the result by more than
rounding. The raw result goes to bench/results/upgrade-search-families.json. No training, no gate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[2] / "bench" / "results" / "upgrade-search-families.json"
_ROUNDING = 1e-4
_MEASURE = """
import hashlib, json, sys
import numpy as np, torch, transformers
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
sizes = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
             max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
distil = dict(vocab_size=99, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64, dropout=0.0,
              attention_dropout=0.0)
modern = dict(vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
              max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=3, pad_token_id=0,
              reference_compile=False)
families = {name: (name, sizes) for name in (
    "bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "mpnet", "deberta-v2", "megatron-bert",
    "rembert", "ernie", "data2vec-text", "roberta-prelayernorm", "ibert", "big_bird", "luke", "squeezebert")}
families |= {
    "bert, relative_key": ("bert", sizes | {"position_embedding_type": "relative_key"}),
    "bert, relative_key_query": ("bert", sizes | {"position_embedding_type": "relative_key_query"}),
    "bert, gelu_new": ("bert", sizes | {"hidden_act": "gelu_new"}),
    "bert, gelu_pytorch_tanh": ("bert", sizes | {"hidden_act": "gelu_pytorch_tanh"}),
    "distilbert": ("distilbert", distil), "modernbert": ("modernbert", modern),
}
random = np.random.Generator(np.random.Philox(5))
ids, mask = torch.tensor(random.integers(5, 99, (3, 32))), torch.ones((3, 32), dtype=torch.long)
mask[1, 20:], mask[2, 7:] = 0, 0
found = {}
for label, (family, settings) in families.items():
    for task, kind in (("masked-lm", AutoModelForMaskedLM), ("classification", AutoModelForSequenceClassification)):
        for attention in ("eager", "sdpa"):
            try:
                config = AutoConfig.for_model(family, **settings)
                model = kind.from_config(config, attn_implementation=attention).float().eval()
                with torch.no_grad():
                    for name, value in model.named_parameters():
                        seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
                        drawn = np.random.Generator(np.random.Philox(seed)).standard_normal(tuple(value.shape))
                        value.copy_(torch.tensor(0.3 * drawn, dtype=value.dtype))
                    logits = model(input_ids=ids * mask, attention_mask=mask).logits.double()
                logits = logits[mask.bool()] if task == "masked-lm" else logits
                found[f"{label}, {task}, {attention}"] = {
                    "parameters": sorted(name for name, _ in model.named_parameters()),
                    "norm": float(logits.norm()), "first": logits.flatten()[:8].tolist()}
            except Exception as error:  # each version refuses other families and kernels
                found[f"{label}, {task}, {attention}"] = {"refused": f"{type(error).__name__}: {error}"[:120]}
print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "models": found}))
"""


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return what differs between two results of a model; "" for nothing."""
    if "refused" in before or "refused" in after:
        return ""  # a version that lacks a family or a kernel
    gone, new = (set(a["parameters"]) - set(b["parameters"]) for a, b in ((before, after), (after, before)))
    if gone or new:
        return f"parameters: -{sorted(gone)[:3]} +{sorted(new)[:3]}"
    pairs = zip([before["norm"], *before["first"]], [after["norm"], *after["first"]], strict=True)
    error = max(abs(ours - theirs) / (abs(ours) + 1e-2) for ours, theirs in pairs)
    return f"result: relative error {error:.1e}" if error > _ROUNDING else ""


def main() -> int:
    """Measure each environment, print the differences, and write the raw result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+", type=Path)
    results: list[dict[str, Any]] = []
    for environment in parser.parse_args().environments:
        command = [str(environment / "bin" / "python"), "-c", _MEASURE]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        for model, after in results[-1]["models"].items() if len(results) > 1 else ():
            text = difference(results[-2]["models"][model], after)
            if text:
                versions = f"transformers {results[-2]['transformers']} to {results[-1]['transformers']}"
                sys.stdout.write(f"{versions}: {model}: {text}\n")
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
