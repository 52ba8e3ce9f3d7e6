"""Write the golden digests of `plumbline train --selfcheck`, from several checks under different versions.

    plumbline train --selfcheck --json > /tmp/a.json   # once for each pair of torch and transformers to be supported
    PYTHONPATH=. python bench/train/golden.py /tmp/*.json --out plumbline/train/portable/golden.json

Every check must have the same digests: the trainer's range of versions is theirs.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from plumbline.schema.digest import digest_json

_COMPARED = ("step", "loss", "outputs", "gradients", "weights", "sketches")


def main() -> None:
    """Compare the checks, and write their digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    checks = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.checks]
    stacks: dict[str, list[str]] = defaultdict(list)
    for check in checks:
        stacks[digest_json(check["steps"])].append(f"torch {check['torch']}, transformers {check['transformers']}")
    if len(stacks) > 1:
        parser.error(f"different digests: {' | '.join('; '.join(same) for same in stacks.values())}")
    # Versions of torch clip in other orders, so that clipped gradients are no part.
    golden = {
        task: [{key: step[key] for key in _COMPARED} for step in steps] for task, steps in checks[0]["steps"].items()
    }
    arguments.out.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    print(f"equal digests in {len(checks)} checks")


if __name__ == "__main__":
    main()
