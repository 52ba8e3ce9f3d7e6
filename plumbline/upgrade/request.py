"""Request of one upgrade: the flow's parameters, checked.

They are checked against the suite.
"""

from __future__ import annotations

from plumbline.errors import ConfigurationError
from plumbline.schema.base import Model, Name
from plumbline.schema.suite import Suite
from plumbline.upgrade.campaign import Budget
from plumbline.upgrade.candidate import Candidate
from plumbline.upgrade.session import workload_of


class UpgradeRequest(Model):
    """Candidate, and the part of a suite that judges it."""

    upgrade_id: Name
    suite: Suite
    candidate: Candidate
    platforms: tuple[str, ...] = ()
    """As asked for; empty for all platforms of the suite."""
    workload: str = ""
    """As asked for; empty for the suite's first with a probe."""
    budget: Budget = Budget()
    releases: bool = False
    """Whether the releases of a culprit are searched, too."""
    allow_unhashed: bool = False
    """Whether packages without a hash are installed, as a person allowed for this upgrade."""

    @property
    def chosen_platforms(self) -> tuple[str, ...]:
        """Return the platforms to judge on, in the suite's order.

        Raise `ConfigurationError` for unknown names.
        """
        if unknown := sorted(set(self.platforms) - self.suite.platforms.keys()):
            hint = f"one of {', '.join(self.suite.platforms)}"
            raise ConfigurationError(f"unknown: {', '.join(unknown)}", where="parameters", key="platforms", hint=hint)
        workload = self.chosen_workload
        trained = [name for name in self.suite.platforms if workload in self.suite.workloads_of(name)]
        if others := sorted(set(self.platforms) - set(trained)):
            what = f"{', '.join(others)}: does not train {workload}"
            raise ConfigurationError(what, where="parameters", key="platforms", hint=f"one of {', '.join(trained)}")
        return tuple(name for name in trained if not self.platforms or name in self.platforms)

    @property
    def chosen_workload(self) -> str:
        """Return the workload to train.

        Raise `ConfigurationError` for an unknown name.
        """
        return workload_of(self.suite, self.workload or None)
