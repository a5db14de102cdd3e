"""What runs in the worker: what a training loop does becomes events, which are sent to the panel.

It needs only the standard library, and to send, pyzmq; on a cluster of Ray that the lab did not start, Ray.

Events are JSON objects. All have ``kind`` and ``run``, and those of a worker ``at`` (Unix seconds), ``rank``,
``pid`` and ``node``. Their kinds, and what each carries:

- worker: a worker process exists; ``workers``: how many its group has, if known.
- phase: ``name`` (loading, training).
- step: ``epoch`` (from this process's first on), ``step``, ``total``, ``rows``, ``seconds``, ``waiting``,
  ``first_wait``, ``between``, ``metrics``, ``done``: counts within this epoch and worker; ``rows`` is None
  where they are unknown; ``ago``: seconds since its last step; ``made``: the steps of all epochs; ``fed``:
  whether there is a loader; ``memory`` and ``gpu_memory`` of its process in bytes; ``parts``: the seconds of
  all steps by part, as `labkit.runs.verdict` takes them, or why they are unseen.
- saved: ``epoch`` and ``step``: epochs and steps of this process when it gave a checkpoint to Ray.
- weights: a look at the weights; ``number``: of the epochs that were over before it; ``last``: whether the
  loop is over; ``steps``; ``names`` of the parameters, and in the same order the norms of ``weights`` and
  ``gradients``, and whether each is ``averaged`` by a wrapper; and what `labkit.worker.weights` counts.
- empty: this worker's loader had no batch.
- end: of the loop, ``seconds`` after its last epoch; ``parts``.
- report: ``metrics``; ``epoch`` if known; ends an epoch. ``passes`` that this process had made over its
  loaders, and ``step``s since, where that is known.
- note: ``text``: what the reader should know about the loop.
- checkpoint: ``path``, ``bytes``, ``metrics``, ``status`` (committed, pending, validated, failed, timed out,
  deleted).
- validation, one that runs in parallel to the training: ``path`` of the checkpoint, ``done``, ``seconds``
  that it took, ``text`` of what it raised; ``process`` that runs it, as it begins.
- print: ``text``: a line that the training function printed.
- failure: ``text``: the worker's traceback; the engine may start the workers again. ``died``: what Ray says
  of a worker whose process is gone.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from labkit.settings import NODE_NAME


class Tracker:
    """Makes the events of one process.

    Args:
        run: id of the run that the events belong to.
        send: takes each event; must not raise.
    """

    in_worker = False

    def __init__(self, run: str, send: Callable[[dict[str, Any]], Any]) -> None:
        self._run, self._send = run, send

    def working(self) -> contextlib.AbstractContextManager:
        """For the time of a training function."""
        return contextlib.nullcontext()

    def emit(self, kind: str, **data: Any) -> None:
        """Send one event, with the rank, the process and the node that it comes from."""
        node = os.environ.get(NODE_NAME) or socket.gethostname()
        where = {"rank": self.rank(), "pid": os.getpid(), "node": node}
        self._send({"kind": kind, "run": self._run, "at": time.time(), **where, **data})

    def rank(self) -> int:
        """The rank of this process in its group; 0 if it is in none."""
        # torchrun, Spark, and most trainers of Ray Train set variables.
        with contextlib.suppress(ValueError, TypeError, KeyError):
            if "RANK" in os.environ:
                return int(os.environ["RANK"])
            return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
        return (self.in_worker and _of_ray("world_rank")) or 0


def group_size() -> int | None:
    """The number of workers in this process's group: that of an elastic training changes."""
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["WORLD_SIZE"])
    return _of_ray("world_size")


def _of_ray(what: str) -> int | None:
    """A trainer of Ray Train without a framework sets no variable; its worker has imported `ray.train`."""
    with contextlib.suppress(Exception):
        return int(getattr(sys.modules["ray.train"].get_context(), f"get_{what}")())
    return None
