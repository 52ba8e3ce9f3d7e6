"""Machines that are up for a round alone: groups of virtual machines of each cloud, behind one small protocol."""

from plumbline.night.machines.group import MachineGroup as MachineGroup
from plumbline.night.machines.group import open_group as open_group
from plumbline.night.machines.group import wanted_sizes as wanted_sizes
