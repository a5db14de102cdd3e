"""pytest over everything, for `make test`: `python -m tests [pytest's options]`.

Two lanes of tests run at a time, each in a process of its own: one alone leaves a quarter of two cores idle,
while it waits for a JVM, a browser or Ray. `-n 0` runs them one after the other in this process, which is
what `--pdb` and a measurement want.

In one process the whole suite loads torch, TensorFlow, Arrow and Ray, and starts and ends Ray many times. Ray
leaves threads of its own behind, in C++; when the interpreter then takes itself apart, one of them may still
read what is gone, and a suite that passed ends with a segmentation fault (ray-project/ray 60048 is one such
race). So when all is said and done, this process leaves at once.
"""

import atexit
import os
import sys

import pytest

# In the order of conftest.py, and not the module with the most tests first.
_LANES = ["--numprocesses=2", "--no-loadscope-reorder"]

status = pytest.main([*_LANES, *sys.argv[1:]])
atexit._run_exitfuncs()  # what the tests started is stopped as ever
sys.stdout.flush()
sys.stderr.flush()
os._exit(int(status))
