"""For tests of panels: wait for something, and events such as no worker should send."""

import math
import random
import time

from labkit.panel.state.run import RunState
from labkit.panel.tracking import events

T0 = 1_000_000.0  # Unix seconds at which the runs of these tests begin

ODD = [None, True, False, 0, 1, -1, 3, 7.5, -2.5, 10**30, 10**400, math.nan, math.inf, -math.inf, "", "epoch"]
ODD += ["loss", "<script>", "\x00\ud800\x1b[1m", "x" * 5000, "ünïcödé 😀", b"bytes", object()]
KINDS = ["worker", "phase", "step", "report", "checkpoint", "print", "failure", "upload", "validation"]


def anything(rng, depth=0):
    """A value such as no worker should send."""
    if depth < 2 and rng.random() < 0.3:
        values = [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
        return values if rng.random() < 0.5 else dict(zip(["loss", "epoch", 1, None], values, strict=False))
    return rng.choice(ODD)


def some_event(rng):
    """An event that is right, damaged or nonsense."""
    event = {
        "kind": rng.choice(KINDS),
        "at": T0 + rng.random() * 1000, "rank": rng.randrange(3), "pid": rng.randrange(1, 6), "node": "n",
        "name": rng.choice(["loading", "validating", "x"]),
        "epoch": rng.randrange(4), "epochs": rng.randrange(5),
        "step": rng.randrange(30), "total": rng.choice([None, 0, 10]), "rows": rng.randrange(1000),
        "seconds": rng.random() * 10, "waiting": rng.random() * 10, "first_wait": rng.random(),
        "between": rng.random(), "metrics": rng.choice([{"loss": 0.5}, [{"loss": 1, "epoch": 2}], None]),
        "done": rng.random() < 0.2, "path": f"/c/{rng.randrange(5)}", "bytes": 10,
        "status": rng.choice(["committed", "pending", "validated", "failed", "timed out"]),
        "text": "some\ntext",
    }  # fmt: skip
    for name in list(event):
        chance = rng.random()
        if chance < 0.05:
            del event[name]
        elif chance < 0.15:
            event[name] = anything(rng)
    return event if rng.random() < 0.98 else anything(rng)


def fuzzed(seed, number=300):
    """A state that has seen a lot of nonsense."""
    rng = random.Random(seed)
    state = RunState(
        rng.choice(["run", "<b>&", ""]), world_size=rng.randrange(1, 4), epochs=rng.choice([None, 3])
    )
    state.start("starting", T0)
    for _ in range(number):
        tell(state, some_event(rng))
    return state


def tell(state, event):
    """Let a state take in an event as a panel does: read, and dropped if it is not one of ours."""
    known = events.read(event)
    if known is not None:
        state.apply(known)


def until(condition, seconds=30):
    """Wait until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)
