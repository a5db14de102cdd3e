"""What the forks' controller of Ray Train does between two looks at its workers, without a cluster."""

import json

import pytest

from labs import python

pytestmark = pytest.mark.slow

LOOKS = """
import json, sys, time
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback
from ray.train.v2._internal.execution.worker_group import WorkerGroup
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus

LOST = UserExceptionWithTraceback(RuntimeError("Connection closed by peer [127.0.0.1]:4000"), "Traceback …")
OWN = UserExceptionWithTraceback(ArithmeticError("the loss is not a number"), "Traceback …")
RANKS = {
    "runs": WorkerStatus(True),
    "reports": WorkerStatus(True, training_report="epoch 1"),
    "over": WorkerStatus(False),
    "lost": WorkerStatus(False, LOST),
    "lost+reports": WorkerStatus(True, LOST, "epoch 1"),
    "own": WorkerStatus(False, OWN),
    "gone": WorkerStatus(False, OSError("The actor died")),
}
WorkerGroup._poll_workers_and_collect_errors = lambda self, timeout: [RANKS[rank] for rank in looks.pop(0)]
from labkit.local.forkserver import shorter_start

time.sleep = lambda seconds: None
shown = []
for case in json.loads(sys.argv[1]):
    looks = [look.split() for look in case]
    statuses = WorkerGroup._poll_workers_and_collect_errors(None, 0.02)
    errors = [type(getattr(status.error, "_base_exc", status.error)).__name__ for status in statuses]
    reports = sum(status.training_report is not None for status in statuses)
    shown.append([*errors, reports, len(looks)])
print(json.dumps(shown))
"""

CASES = {  # the looks that there could be: (the errors shown, how many reports, how many looks are unread)
    ("runs runs", "own own"): ["NoneType", "NoneType", 0, 1],
    ("runs own", "own own"): ["NoneType", "ArithmeticError", 0, 1],
    ("lost own", "own own"): ["RuntimeError", "ArithmeticError", 0, 1],
    ("lost over", "own own"): ["RuntimeError", "NoneType", 0, 1],
    ("gone runs", "own own"): ["OSError", "NoneType", 0, 1],
    # Each failure that was seen follows from one that wasn't.
    ("lost runs", "lost own"): ["RuntimeError", "ArithmeticError", 0, 0],
    ("lost runs", "lost gone"): ["RuntimeError", "OSError", 0, 0],
    ("lost runs", "lost runs"): ["RuntimeError", "NoneType", 0, 0],
    ("lost reports", "lost own"): ["RuntimeError", "ArithmeticError", 1, 0],
    ("lost+reports runs", "lost reports"): ["RuntimeError", "NoneType", 2, 0],
}


def test_a_second_look_finds_the_failure_that_the_others_follow_from():
    done = python(LOOKS, json.dumps(list(CASES)))
    assert json.loads(done.stdout.splitlines()[-1]) == list(CASES.values()), done.stdout
