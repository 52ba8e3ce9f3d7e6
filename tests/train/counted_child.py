"""Process under torchrun that counts gradient all-reduces: `counted_child.py OUT ARGUMENTS...`.

The count goes to `OUT.rank`; the arguments are those of `python -m plumbline.train`.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from plumbline.train import engine
from plumbline.train.__main__ import main

COUNT = {"reduces": 0}


# DDP reads the annotations: they may not be strings.
def _count(_state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    COUNT["reduces"] += 1
    tensor = bucket.buffer().div_(torch.distributed.get_world_size())
    return torch.distributed.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])


class Counted(DistributedDataParallel):
    """Reduces as ever, and counts."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.register_comm_hook(None, _count)


if __name__ == "__main__":
    engine.DistributedDataParallel = Counted
    code = main(sys.argv[2:])
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_text(str(COUNT["reduces"]))
    sys.exit(code)
