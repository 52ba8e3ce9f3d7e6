"""Puts one fault of the catalogue into a training process, from outside: this folder on PYTHONPATH, and a variable.

    PLUMBLINE_FAULT=operators.gelu_in_bf16 PYTHONPATH=bench/faults/site:. plumbline train SPEC --out DIR --data URL

The product knows nothing of it; only a process that imports the trainer is touched.
"""

import os
import sys
from importlib.machinery import PathFinder

_MODULE = "plumbline.train.job"


class _Injection:
    """Finds the trainer's module as ever, and applies the fault once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            from bench.faults.catalogue import inject

            inject(os.environ["PLUMBLINE_FAULT"])

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("PLUMBLINE_FAULT"):
    sys.meta_path.insert(0, _Injection())
