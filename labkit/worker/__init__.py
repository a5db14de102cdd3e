"""What runs in the worker: what a training loop does becomes events, which are sent to the panel.

It needs only the standard library, and to send, pyzmq; on a cluster of Ray that the lab did not start, Ray.
`labkit.worker.events` lists the events.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.settings import NODE_NAME
from labkit.worker.events import Event


class Tracker:
    """Sends the events of one process.

    Args:
        run: id of the run that the events belong to.
        send: takes each event; must not raise.
    """

    in_worker = False
    compares = True  # whether the ranks' weights are compared

    def __init__(self, run: str, send: Callable[[Event], Any]) -> None:
        self._run = run
        self._send = send

    def working(self) -> contextlib.AbstractContextManager:
        """Return a context for the time of a training function."""
        return contextlib.nullcontext()

    def emit(self, event: Event) -> None:
        """Send one event, with the rank, the process and the node that it comes from."""
        sent = replace(
            event,
            run=self._run,
            at=time.time(),
            rank=self.rank(),
            pid=os.getpid(),
            node=os.environ.get(NODE_NAME) or socket.gethostname(),
        )
        self._send(sent)

    def rank(self) -> int:
        """Return the rank of this process in its group; 0 if it is in none."""
        # torchrun, Spark, and most trainers of Ray Train set variables.
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if "RANK" in os.environ:
                return int(os.environ["RANK"])
            return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
        return (self.in_worker and _of_ray("world_rank")) or 0


def group_size() -> int | None:
    """Return the number of workers in this process's group, which changes in an elastic training."""
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["WORLD_SIZE"])
    return _of_ray("world_size")


def _of_ray(name: str) -> int | None:
    """Return a number of Ray Train's context, such as ``world_size``, if this is a worker of Ray Train."""
    # Its trainers without a framework set no variable, and their workers have imported `ray.train`.
    with contextlib.suppress(Exception):
        context = sys.modules["ray.train"].get_context()
        return int(getattr(context, f"get_{name}")())
    return None
