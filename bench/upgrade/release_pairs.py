"""What the upgrade gate says of public releases, beside what is known of them.

    python -m bench.upgrade.release_pairs [--only TEXT] [--pip ARGUMENT]

Each pair of `releases/pairs.toml` begins with an environment of its own, which uv builds once below `--work`, and asks
`plumbline upgrade --python` for the candidate. The raw answers go to bench/results/upgrade-release-pairs.json after
each pair; a second call continues.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from plumbline.digest import digest_json

ROOT = Path(__file__).resolve().parents[2]
RELEASES = Path(__file__).with_name("releases")
OUT = ROOT / "bench" / "results" / "upgrade-release-pairs.json"
_SECONDS = 3600
_CHECKPOINT = """
import sys, torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast
letters = "abcdefghijklmnopqrstuvwxyz"
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)]
open(sys.argv[1] + ".vocab", "w").write("\\n".join(words))
tokenizer = BertWordPieceTokenizer(sys.argv[1] + ".vocab")
BertTokenizerFast(tokenizer_object=tokenizer._tokenizer).save_pretrained(sys.argv[1])
torch.manual_seed(1)
config = BertConfig(
    vocab_size=len(words), hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
    max_position_embeddings=64, position_embedding_type="relative_key",
)
BertForMaskedLM(config).save_pretrained(sys.argv[1])
"""


def _uv(uv: str, *words: str) -> str:
    return subprocess.run([*uv.split(), "--quiet", *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def environment(base: dict[str, Any], work: Path, uv: str) -> Path:
    """Return the environment of a base, with its lock; build it if missing."""
    folder = work / f"base-{digest_json(base)[:12]}"
    lock = folder / "requirements.txt"
    if not lock.is_file():
        _uv(uv, "venv", "--clear", "--no-config", "--python", base["python"], str(folder))
        _uv(uv, "pip", "install", "--no-config", "--python", str(folder), *base["packages"])
        lock.write_text(_uv(uv, "pip", "freeze", "--no-config", "--python", str(folder)), encoding="utf-8")
    return folder


def candidate(pair: dict[str, Any], base: Path, work: Path) -> Path:
    """Write the candidate's lock: the base's with the pair's pins, or the pair's own."""
    if "lock" in pair:
        return RELEASES / str(pair["lock"])
    pins = {line.partition("==")[0]: line for line in (base / "requirements.txt").read_text("utf-8").splitlines()}
    path = work / "candidate.txt"
    path.write_text("\n".join((pins | {pin.partition("==")[0]: pin for pin in pair["changes"]}).values()) + "\n")
    return path


def suite(pair: dict[str, Any], base: Path, work: Path) -> Path:
    """Write the suite; with a checkpoint that the base's own transformers made, if the pair wants one."""
    text = (RELEASES / "suite.toml").read_text(encoding="utf-8")
    if pair.get("relative_key"):
        folder = work / "relative-key"
        python = str(base / "bin" / "python")
        subprocess.run([python, "-c", _CHECKPOINT, str(folder)], check=True, capture_output=True)
        text = text.replace('model = "tiny"', f'model = "{folder}"').replace("vocab_size = 256\n", "")
    path = work / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return path


def judged(pair: dict[str, Any], base: Path, work: Path, pip: list[str]) -> dict[str, Any]:
    """Ask the gate, and compare its answer with what is known."""
    command = [
        sys.executable, "-m", "plumbline", "upgrade", str(suite(pair, base, work)), "--python", str(base),
        "--candidate", str(candidate(pair, base, work)), "--allow-unhashed", "--work", str(work / "gate"), "--json",
        *(f"--pip={argument}" for argument in pip),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_SECONDS, check=False)
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    culprits = answer.get("culprits", [])
    named = sorted({change["package"] for culprit in culprits for change in culprit["changes"]})
    right = done.returncode == 0 if pair["answer"] == "pass" else named == [pair["answer"]]
    return {
        **pair, "verdict": answer.get("verdict", done.stderr[-500:]), "named": named, "is_right": right,
        "sentences": [culprit["sentence"] for culprit in culprits], "notes": answer.get("notes", []),
        "num_changes": len(answer.get("changes", [])), "trials": answer.get("trials", []),
        "seconds": round(answer.get("seconds", 0.0)),
    }  # fmt: skip


def main() -> int:
    """Judge each pair that has no answer yet; return 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pairs whose name contains this text")
    parser.add_argument("--work", type=Path, default=ROOT / ".plumbline" / "release-pairs")
    parser.add_argument("--pip", action="append", default=[], help="argument for the gate's installer")
    parser.add_argument("--uv", default=f"{sys.executable} -m uv", help="command of uv")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    table = tomllib.loads((RELEASES / "pairs.toml").read_text(encoding="utf-8"))
    results: list[dict[str, Any]] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.is_file() else []
    known = {result["name"] for result in results}
    for pair in table["pairs"]:
        if pair["name"] in known or arguments.only not in pair["name"]:
            continue
        base = environment(table["bases"][pair["base"]], arguments.work.resolve(), arguments.uv)
        results.append(judged(pair, base, arguments.work.resolve(), arguments.pip))
        print(f"{pair['name']}: {results[-1]['verdict']} {results[-1]['sentences']}", flush=True)
        OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(result["is_right"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
