"""Virtual machine groups that run only during a round."""

from plumbline.night.machines.group import MachineGroup as MachineGroup
from plumbline.night.machines.group import open_group as open_group
from plumbline.night.machines.group import wanted_sizes as wanted_sizes
