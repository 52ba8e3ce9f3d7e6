"""Write the golden digests of `plumbline selfcheck`, from several checks that were run under different versions.

    plumbline selfcheck --json > /tmp/a.json        # once for each pair of torch and transformers to be supported
    PYTHONPATH=. python bench/train/golden.py /tmp/*.json --out plumbline/train/portable/golden.json

Checks with equal digests become one set of formulas. A release that adds a set says why the formulas changed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from plumbline.digest import digest_json


def main() -> None:
    """Group the checks by their digests, and write the sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    sets: dict[str, dict[str, Any]] = {}
    for path in arguments.checks:
        check = json.loads(path.read_text(encoding="utf-8"))
        formulas = sets.setdefault(
            digest_json(check["steps"]), {"transformers": set(), "torch": set(), "steps": check["steps"]}
        )
        formulas["transformers"].add(check["transformers"])
        formulas["torch"].add(check["torch"].partition("+")[0])
    document = {
        "formulas": [
            item | {name: _range(item[name]) for name in ("transformers", "torch")} for item in sets.values()
        ]
    }  # fmt: skip
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(sets)} sets of formulas from {len(arguments.checks)} checks")


def _range(versions: set[str]) -> dict[str, str]:
    """Return the lowest and the highest minor version."""
    minors = sorted(tuple(map(int, version.split(".")[:2])) for version in versions)
    first, last = (".".join(map(str, minor)) for minor in (minors[0], minors[-1]))
    return {"first": first, "last": last}


if __name__ == "__main__":
    main()
