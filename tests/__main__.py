"""pytest over everything, for `make test`: `python -m tests [pytest's options]`.

In one process the whole suite loads torch, TensorFlow, Arrow and Ray, and starts and ends Ray many times. Ray
leaves threads of its own behind, in C++; when the interpreter then takes itself apart, one of them may still
read what is gone, and a suite that passed ends with a segmentation fault (ray-project/ray 60048 is one such
race). So when all is said and done, this process leaves at once.
"""

import atexit
import os
import sys

import pytest

status = pytest.main(sys.argv[1:])
atexit._run_exitfuncs()  # what the tests started is stopped as ever
sys.stdout.flush()
sys.stderr.flush()
os._exit(int(status))
