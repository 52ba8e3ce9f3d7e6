"""Machines of one multi-node training, started by a Kubernetes job."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.variables import variable

_FIRST = "PLUMBLINE_FIRST_NODE"
"""Variable of the job template with the address of the first machine, as `HOST:PORT`."""
_INDEX = "JOB_COMPLETION_INDEX"
"""Variable of Kubernetes with a pod's number in its job."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Number of machines of one training, and this machine's rank."""

    count: int = 1
    rank: int = 0
    """Number of this machine; the first one writes the record."""
    first: str = ""
    """Address of the first machine, where all meet, as `HOST:PORT`."""

    def launcher(self, num_processes: int) -> list[str]:
        """Return torchrun's options for `num_processes` local processes; empty for one."""
        if num_processes * self.count == 1:
            return []
        place = {"nnodes": self.count, "node-rank": self.rank, "rdzv-endpoint": self.first}
        meeting = [f"--{name}={value}" for name, value in place.items()] if self.count > 1 else ["--standalone"]
        return [*meeting, f"--nproc-per-node={num_processes}"]


ONE_NODE = Nodes()


def own_node(count: int) -> Nodes:
    """Return this machine's rank among `count`, from its pod's environment."""
    if count == 1:
        return ONE_NODE
    first = variable(_FIRST)
    if not first:
        hint = "use a Kubernetes pool with infra/kubernetes/gpu-job-template.json"
        raise ConfigurationError(f"is {count}, and this pool starts one machine", key="nodes", hint=hint)
    return Nodes(count, int(variable(_INDEX, "0")), first)
