"""pytest over everything, for `make test`: `python -m tests [--tier test|all|touched] [pytest's options]`.

`tests/tiers.py` says which tests the tiers have. Two lanes of tests run at a time, each in a process of its
own: one alone leaves a quarter of two cores idle, while it waits for a JVM, a browser or Ray. `-n 0` runs
them one after the other in this process, which is what `--pdb` and a measurement want. The seconds of each
test are in `build/tests.xml`, in JUnit's format.

In one process the whole suite loads torch, TensorFlow, Arrow and Ray, and starts and ends Ray many times. Ray
leaves threads of its own behind, in C++; when the interpreter then takes itself apart, one of them may still
read what is gone, and a suite that passed ends with a segmentation fault (ray-project/ray 60048 is one such
race). So when all is said and done, this process leaves at once.
"""

import argparse
import atexit
import os
import subprocess
import sys
import time

import pytest

from tests import tiers

# In the order of conftest.py, and not the module with the most tests first.
_OPTIONS = ["--numprocesses=2", "--no-loadscope-reorder", "--durations=10", "--junitxml=build/tests.xml"]
# Waits have long limits, for busy machines. Where much is broken, they would take hours together.
_OPTIONS += ["--maxfail=20"]

parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
parser.add_argument("--tier", choices=("test", "all", "touched"), default="all")
given, options = parser.parse_known_args()
chosen = {"test": lambda: ["-m", "not deep"], "all": lambda: [], "touched": tiers.touched}[given.tier]()
if given.tier == "touched" and not chosen:
    print("nothing that a deep test covers differs from the commit in .ci/tested: 0 passed, 0 failed")
    sys.exit(0)
began = time.monotonic()
subprocess.run([sys.executable, "-c", "import torch"], check=True)
seconds = time.monotonic() - began
print(f"`import torch` takes {seconds:.1f} s here; above 2 s, the suite takes longer, too", flush=True)
status = pytest.main([*_OPTIONS, *chosen, *options])
if given.tier == "all" and status == 0 and not options:
    print(tiers.note_tested())
atexit._run_exitfuncs()  # what the tests started is stopped as ever
sys.stdout.flush()
sys.stderr.flush()
os._exit(int(status))
