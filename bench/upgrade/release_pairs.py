"""What the upgrade gate says of public releases, beside what is known of them.

    python -m bench.upgrade.release_pairs [--only TEXT] [--pip ARGUMENT]

Each pair of `releases/pairs.toml` begins with an environment of its own, which uv builds once below `--work`, and asks
`plumbline upgrade --python` for the candidate. The raw answers go to bench/results/upgrade-release-pairs.json after
each pair; a second call continues.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
_IMPORTS = (
    "torch", "transformers.models.bert.modeling_bert", "tokenizers", "safetensors.torch", "pyarrow.parquet", "pydantic",
)  # fmt: skip
"""Imported once in each new environment: uv compiles nothing, and each training would compile it again."""
_CHECKPOINT = """
import sys
from transformers import AutoConfig, AutoModelForMaskedLM
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
config = AutoConfig.for_model(sys.argv[1], vocab_size=341, max_position_embeddings=40, pad_token_id=1, **sizes)
AutoModelForMaskedLM.from_config(config).save_pretrained(sys.argv[2])
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
        subprocess.run([str(folder / "bin" / "python"), "-c", f"import {', '.join(_IMPORTS)}"], check=True)
        lock.write_text(_uv(uv, "pip", "freeze", "--no-config", "--python", str(folder)), encoding="utf-8")
    return folder


def candidate(pair: dict[str, Any], packages: list[str], base: Path, work: Path, uv: str) -> Path:
    """Write the candidate's lock: the base's with the pair's pins, resolved anew if the pair says so, or its own."""
    if "lock" in pair:
        return RELEASES / str(pair["lock"])
    if pair.get("resolved"):
        wanted = {pin.partition("==")[0]: pin for pin in (*packages, *pair["changes"])}
        (work / "wanted.in").write_text("\n".join(wanted.values()) + "\n", encoding="utf-8")
        python = str(base / "bin" / "python")
        _uv(
            uv,
            "pip",
            "compile",
            "--no-config",
            "--python",
            python,
            str(work / "wanted.in"),
            "-o",
            str(work / "candidate.txt"),
        )
        return work / "candidate.txt"
    pins = {line.partition("==")[0]: line for line in (base / "requirements.txt").read_text("utf-8").splitlines()}
    path = work / "candidate.txt"
    path.write_text("\n".join((pins | {pin.partition("==")[0]: pin for pin in pair["changes"]}).values()) + "\n")
    return path


def suite_of(pair: dict[str, Any], base: Path, work: Path) -> Path:
    """Return the pair's suite; with `checkpoint`, of a small checkpoint that the base's transformers writes."""
    suite = RELEASES / pair.get("suite", "suite.toml")
    if "checkpoint" not in pair:
        return suite
    folder = work / f"checkpoint-{pair['checkpoint']}"
    command = [str(base / "bin" / "python"), "-c", _CHECKPOINT, pair["checkpoint"], str(folder)]
    subprocess.run(command, check=True)
    (folder / "tokenizer.json").write_bytes((RELEASES / "bytelevel.json").read_bytes())
    written = work / suite.name
    written.write_text(suite.read_text(encoding="utf-8").replace("CHECKPOINT", str(folder)), encoding="utf-8")
    return written


def judged(pair: dict[str, Any], base: Path, lock: Path, work: Path, pip: list[str]) -> dict[str, Any]:
    """Return what the gate answers."""
    command = [
        sys.executable, "-m", "plumbline", "upgrade", str(suite_of(pair, base, work)),
        "--python", str(base), "--candidate", str(lock), "--allow-unhashed", "--work", str(work / "gate"), "--json",
        *(f"--pip={argument}" for argument in pip),
    ]  # fmt: skip
    # A suite's files are named from its own folder.
    done = subprocess.run(command, cwd=RELEASES, capture_output=True, text=True, timeout=_SECONDS, check=False)
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    if "trials" not in answer:
        raise RuntimeError(f"{pair['name']}: no answer: {answer.get('error') or done.stderr[-500:]}")
    culprits = answer.get("culprits", [])
    return {
        "verdict": answer["verdict"], "exit_code": done.returncode,
        "named": sorted({change["package"] for culprit in culprits for change in culprit["changes"]}),
        "sentences": [culprit["sentence"] for culprit in culprits], "notes": answer.get("notes", []),
        "num_changes": len(answer.get("changes", [])), "machine": _machine(), "trials": answer.get("trials", []),
        "seconds": round(answer.get("seconds", 0.0)),
    }  # fmt: skip


def rated(pair: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Return an answer beside what the table knows of its pair."""
    is_right = result["verdict"] == "pass" if pair["answer"] == "pass" else result["named"] == [pair["answer"]]
    if "rounds" in pair:
        is_right &= any(f"likely because of {pair['rounds']} " in note for note in result["notes"])
    return {**result, **pair, "is_right": is_right}


def _write(path: Path, results: list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _machine() -> str:
    return f"{os.cpu_count()} cores shared with other programs (load {os.getloadavg()[0]:.0f}), {platform.machine()}"


def main() -> int:
    """Judge each pair that has no answer yet; return 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], help="pairs whose name contains this text; may be repeated"
    )
    parser.add_argument("--work", type=Path, default=ROOT / ".plumbline" / "release-pairs")
    parser.add_argument("--pip", action="append", default=[], help="argument for the gate's installer")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--uv", default=f"{sys.executable} -m uv", help="command of uv")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    table = tomllib.loads((RELEASES / "pairs.toml").read_text(encoding="utf-8"))
    results: list[dict[str, Any]] = json.loads(arguments.out.read_bytes()) if arguments.out.is_file() else []
    known = {result["name"] for result in results}
    has_failed = False
    for pair in table["pairs"]:
        is_wanted = not arguments.only or any(text in pair["name"] for text in arguments.only)
        if pair["name"] in known or not is_wanted:
            continue
        work, about = arguments.work.resolve(), table["bases"][pair["base"]]
        base = environment(about, work, arguments.uv)
        lock = candidate(pair, about["packages"], base, work, arguments.uv)
        try:
            results.append({**pair, **judged(pair, base, lock, work, arguments.pip)})
        except RuntimeError as error:
            print(error, flush=True)
            has_failed = True
            continue
        print(f"{pair['name']}: {results[-1]['verdict']} {results[-1]['sentences']}", flush=True)
        _write(arguments.out, results)
    # An answer stays; what the table knows of its pair may have been corrected since.
    by_name = {pair["name"]: pair for pair in table["pairs"]}
    results = [rated(by_name[result["name"]], result) for result in results]
    _write(arguments.out, results)
    return int(has_failed or not all(result["is_right"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
