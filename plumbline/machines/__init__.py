"""Machines that are up for a round alone: groups of virtual machines of each cloud, behind one small protocol."""

from plumbline.machines.group import MachineGroup, open_group, wanted_sizes

__all__ = ["MachineGroup", "open_group", "wanted_sizes"]
