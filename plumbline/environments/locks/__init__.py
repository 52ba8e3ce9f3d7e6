"""Lock files of every supported format, read as pins for this interpreter."""

from plumbline.environments.locks.model import Lock as Lock
from plumbline.environments.locks.model import LockFiles as LockFiles
from plumbline.environments.locks.model import Pin as Pin
from plumbline.environments.locks.read import load_lock as load_lock
from plumbline.environments.locks.read import parse_lock as parse_lock
from plumbline.environments.locks.read import read_lock as read_lock
