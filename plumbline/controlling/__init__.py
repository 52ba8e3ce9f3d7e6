"""The command's side of a round: starts the controller as a process of its own, follows it, and shows what happens."""

from plumbline.controlling.display import Display
from plumbline.controlling.follow import Ended, follow

__all__ = ["Display", "Ended", "follow"]
