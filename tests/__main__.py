"""pytest over everything, for `make test`: `python -m tests [--tier test|all|touched] [pytest's options]`.

`tests/tiers.py` says which tests the tiers have. Two lanes of tests run at a time, each in a process of its
own: one alone leaves a quarter of two cores idle, while it waits for a JVM, a browser or Ray. `-n 0` runs
them one after the other in this process, which is what `--pdb` and a measurement want.

In one process the whole suite loads torch, TensorFlow, Arrow and Ray, and starts and ends Ray many times. Ray
leaves threads of its own behind, in C++; when the interpreter then takes itself apart, one of them may still
read what is gone, and a suite that passed ends with a segmentation fault (ray-project/ray 60048 is one such
race). So when all is said and done, this process leaves at once.
"""

import argparse
import atexit
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import tiers

# In the order of conftest.py, and not the module with the most tests first.
_LANES = ["--numprocesses=2", "--no-loadscope-reorder"]
_TIMES = Path("build") / "test-times.json"


class Times:
    """Writes the seconds of each test and module (setup and teardown included) and of the whole run."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def write(self, path: Path, **more: object) -> None:
        modules: Counter[str] = Counter()
        for test, seconds in self.seconds.items():
            modules[test.partition("::")[0]] += seconds
        rounded = [
            {name: round(value, 2) for name, value in c.most_common()} for c in (modules, self.seconds)
        ]
        whole = round(time.monotonic() - self.began, 1)
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            json.dumps({"seconds": whole, **more, "modules": rounded[0], "tests": rounded[1]}, indent=1)
        )


def _seconds_to_import_torch() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return round(time.monotonic() - began, 1)


parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
parser.add_argument("--tier", choices=("test", "all", "touched"), default="all")
given, options = parser.parse_known_args()
chosen = {"test": lambda: ["-m", "not deep"], "all": lambda: [], "touched": tiers.touched}[given.tier]()
if given.tier == "touched" and not chosen:
    print("nothing that a deep test covers differs from the commit in .ci/tested: 0 passed, 0 failed")
    sys.exit(0)
import_seconds = _seconds_to_import_torch()
print(
    f"`import torch` takes {import_seconds} s here; above 2 s, the suite takes longer, too",
    flush=True,
)
times = Times()
status = pytest.main([*_LANES, *chosen, "--durations=10", *options], plugins=[times])
times.write(_TIMES, import_torch=import_seconds)
if given.tier == "all" and status == 0 and not options:
    print(tiers.note_tested())
atexit._run_exitfuncs()  # what the tests started is stopped as ever
sys.stdout.flush()
sys.stderr.flush()
os._exit(int(status))
