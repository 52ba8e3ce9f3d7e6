"""Which public releases change a training step? Loss and gradients of four model families under each release.

    pip install --no-deps --target FOLDER transformers==VERSION ...
    python -m bench.upgrade.search_releases --out bench/results/upgrade-search.json FOLDER ...

Each FOLDER holds a release and what it requires besides this environment; the environment itself comes first. A step
is forward and backward of a small model in fp32 on the CPU, with padded rows, weights drawn by parameter name, without
dropout and with it (torch's own, seeded). A release whose digests are all those of the environment computes the same
training step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LAYERS = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100,
}  # fmt: skip
_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {**_LAYERS, "max_position_embeddings": 64},
    "Roberta": {**_LAYERS, "max_position_embeddings": 66},
    "DistilBert": {"dim": 32, "n_layers": 4, "n_heads": 2, "hidden_dim": 64, "vocab_size": 100},
    "ModernBert": {**_LAYERS, **_TOKENS, "max_position_embeddings": 64, "local_attention": 8, "pad_token_id": 0},
}
HEADS = ("SequenceClassification", "MaskedLM")
ATTENTION = ("eager", "sdpa")


def _fill(model: Any) -> None:
    """Draw each weight from a generator that its name seeds."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            seed = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            is_scale = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(0.05 * drawn + (1.0 if is_scale else 0.0))


def _batch(head: str, padding: int) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 100, (4, 24), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 10:] = mask[2, 20:] = 0
    ids[mask == 0] = padding
    hidden = (torch.rand(ids.shape, generator=generator) < 0.3) & (mask == 1)
    is_classes = head == "SequenceClassification"
    labels = torch.tensor([0, 1, 2, 1]) if is_classes else torch.where(hidden, ids, torch.tensor(-100))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _step(family: str, head: str, attention: str, dropout: float) -> str:
    """Return the digest of a step's loss and gradients, or the exception's first line."""
    import torch
    import transformers

    try:
        config = getattr(transformers, f"{family}Config")(
            **FAMILIES[family], attn_implementation=attention, **({"num_labels": 3} if head != "MaskedLM" else {})
        )
        for key in [key for key in config.to_dict() if "dropout" in key]:
            setattr(config, key, dropout)
        config.reference_compile = False
        model = getattr(transformers, f"{family}For{head}")(config).float().train()
        _fill(model)
        torch.manual_seed(11)
        loss = model(**_batch(head, 1 if family == "Roberta" else 0)).loss
        loss.backward()
    except Exception as error:  # noqa: BLE001 - any failure of a release is its result
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    digest = hashlib.sha256(loss.item().hex().encode())
    for name, parameter in sorted(model.named_parameters()):
        if parameter.grad is not None:
            digest.update(name.encode() + parameter.grad.numpy().tobytes())
    return digest.hexdigest()[:16]


def _steps() -> Iterator[tuple[str, str]]:
    import torch

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    for family in FAMILIES:
        for head in HEADS:
            for attention in ATTENTION:
                for dropout in (0.0, 0.1):
                    name = f"{family} {head} {attention} dropout {dropout}"
                    yield name, _step(family, head, attention, dropout)


def _child() -> None:
    from importlib.metadata import version

    names = ("torch", "transformers", "tokenizers", "huggingface-hub")
    json.dump({"packages": {name: version(name) for name in names}, "steps": dict(_steps())}, sys.stdout)


def _measure(folder: str) -> dict[str, Any]:
    path = os.pathsep.join(filter(None, (folder, str(ROOT))))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "bench.upgrade.search_releases", "--child"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"folder": Path(folder).name, "error": done.stderr.strip().splitlines()[-1][:200]}
    return dict(json.loads(done.stdout))


def main() -> int:
    """Measure each release; print those that differ from the environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        _child()
        return 0
    results = [_measure(folder) for folder in ("", *arguments.folders)]
    own = results[0]["steps"]
    for result in results[1:]:
        steps = result.get("steps", {})
        result["different"] = sorted(name for name, digest in steps.items() if digest != own[name])
        print(result.get("packages", result.get("folder")), result.get("error") or result["different"] or "all equal")
    if arguments.out:
        machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
        document = {"machine": machine, "results": results}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
