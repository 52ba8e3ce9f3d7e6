"""One thread for every training under test, from before torch is first imported.

Another number of threads rounds otherwise, and two threads on two busy cores wait longer than they compute.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
