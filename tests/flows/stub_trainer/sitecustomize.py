"""A trainer that trains nothing: this folder on PYTHONPATH, and every training delivers a copy.

The worker, the flow run, the launch, the leash, the progress and the way of the record stay the product's own. It
tells of its steps for a while, and holds still as long as `STUB/hold/PLATFORM` exists; then it copies the record
`STUB/records/PLATFORM`, or `STUB/records/good`, under the names that it was given. `STUB` is an environment variable.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_STEPS = 12
_STEP_SECONDS = 0.4


def _train(arguments):
    from plumbline.environments.parent_watch import watch_parent  # noqa: PLC0415 - only in a training process

    watch_parent(os.environ)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(3))
    out, options = Path(arguments[1]), dict(zip(arguments[2::2], arguments[3::2], strict=True))
    platform, stub = options["--platform"], Path(os.environ["STUB"])
    for step in range(_STEPS):
        _tell(step)
        time.sleep(_STEP_SECONDS)
    while (stub / "hold" / platform).exists():
        time.sleep(0.1)
    record = stub / "records" / platform
    shutil.copytree(record if record.is_dir() else stub / "records" / "good", out, dirs_exist_ok=True)
    content = json.loads((out / "record.json").read_bytes())
    names = {"record_id": "--record-id", "platform": "--platform", "round_id": "--round-id"}
    content |= {name: options[option] for name, option in names.items()}
    content |= {"attempt": int(options.get("--attempt", 0)), "nonce": os.environ.get("PLUMBLINE_NONCE", "")}
    (out / "record.json").write_text(json.dumps(content), encoding="utf-8")


def _tell(step):
    sys.stderr.write(json.dumps({"event": "progress", "part": "probe", "step": step, "steps": _STEPS}) + "\n")
    sys.stderr.flush()


if sys.orig_argv[1:2] == ["-c"] and "'plumbline.train'" in sys.orig_argv[2] and os.environ.get("STUB"):
    _train(sys.orig_argv[3:])
    os._exit(0)
