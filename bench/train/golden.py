"""Write the golden numbers of `plumbline train --selfcheck`, from several checks under different versions.

    plumbline train --selfcheck --json > /tmp/a.json   # once for each pair of torch and transformers to be supported
    PYTHONPATH=. python bench/train/golden.py /tmp/*.json --out plumbline/train/portable/golden.json

Every check must have the same numbers, within `limits.EXACT`: the trainer's range of versions is theirs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from plumbline.train.selfcheck import first_difference, golden_window


def main() -> None:
    """Compare the checks, and write the numbers of the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    checks = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.checks]
    known, *others = (
        {task: tuple(map(golden_window, steps)) for task, steps in each["steps"].items()} for each in checks
    )
    for check, found in zip(checks[1:], others, strict=True):
        for task, windows in found.items():
            if at := first_difference(known[task], windows):
                parser.error(f"torch {check['torch']}, transformers {check['transformers']} differ: {task}, {at}")
    arguments.out.write_text(json.dumps(checks[0]["steps"], separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"equal numbers in {len(checks)} checks")


if __name__ == "__main__":
    main()
