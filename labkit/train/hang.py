"""Find out what the ranks of a run that hangs are waiting for.

py-spy, which comes with Ray, reads the stack of a rank in some hundredths of a second. Compared with each
other, the stacks of all ranks tell for whom the others wait.
"""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import psutil

from labkit import cluster
from labkit.display.tracebacks import is_own, place
from labkit.panel.workers import WorkerState

_TIMEOUT = 10.0  # seconds for one rank

# What a rank is doing, by the names of functions on its stack, innermost first. Some are private names of
# torch and Ray: without them, the innermost function is named. Other packages have such names, too.
_GROUPS = ("/torch/", "/ray/", "/tensorflow/")
_REPORT = "ray.train.report, which waits for all ranks"
_COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "barrier", "reduce_scatter", "recv", "send")
_FOR_OTHERS = {
    **{name: name for name in _COLLECTIVES},
    "_sync_checkpoint_dir_name_across_ranks": _REPORT,
    "broadcast_from_rank_zero": _REPORT,
    "report": _REPORT,
    "_engine_run_backward": "loss.backward(), which averages the gradients of all ranks",
}
_ALONE = {
    "set_trace": "a debugger: remove breakpoint() from the loop",
    "interaction": "a debugger: remove breakpoint() from the loop",
    "_try_get_data": "a DataLoader's worker process: try num_workers=0",
    "iter_batches": "Ray Data's next batch: is a CPU left for reading?",
    "sync": "an answer of the object store",
    "persist_current_checkpoint": "the upload of its checkpoint",
}


class Waiting(NamedTuple):
    """What one rank is doing."""

    activity: str
    where: str = ""  # the reader's own line, such as "in a cell, line 12", if one is on the stack
    call: str = ""  # in which it waits for the other ranks

    def __str__(self) -> str:
        return f"{self.activity} ({self.where})" if self.where else self.activity


def explain(workers: Iterable[WorkerState]) -> list[str]:
    """Return a line for each rank, and one on which rank the others wait for, if the stacks tell."""
    workers = sorted(workers, key=attrgetter("rank"))
    ranks = {worker.rank: _look(worker) for worker in workers}
    lines = [f"rank {rank}: {waiting}" for rank, waiting in ranks.items()]
    if all(is_here(worker.node) for worker in workers):  # else the guilty rank may not have been seen
        lines += _verdict(ranks)
    return lines


def _verdict(ranks: dict[int, Waiting]) -> list[str]:
    guilty = [rank for rank, waiting in ranks.items() if not waiting.call]
    early = [rank for rank, waiting in ranks.items() if waiting.call == _REPORT]
    late = [rank for rank, waiting in ranks.items() if waiting.call != _REPORT]
    if 0 < len(guilty) < len(ranks):
        return [f"The others wait for {_names(guilty)}."]
    if guilty or not early or not late:
        return []
    why = f"{_names(early)} made fewer steps, or {_names(late)} reported less often"
    return [f"They wait for each other in different calls: {why}."]


def _names(ranks: list[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def _look(worker: WorkerState) -> Waiting:
    process = f"its process {worker.pid}"
    if not is_here(worker.node):
        return Waiting(f"{process} is on another machine ({worker.node})")
    is_frozen = False
    try:
        is_frozen = psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
        doing = _doing(_frames(worker.pid, frozen=is_frozen))
    except psutil.NoSuchProcess:
        return Waiting(f"{process} has ended")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = getattr(error, "stderr", None) or str(error)
        fix = "; sudo sysctl kernel.yama.ptrace_scope=0 allows it" if "ermission" in message else ""
        doing = Waiting(f"py-spy cannot read its stack{fix}")
    if is_frozen:
        return Waiting(f"{process} is frozen: kill -CONT {worker.pid}", doing.where)
    return doing


def is_here(node: str) -> bool:
    """Return whether a node is this machine or container: elsewhere, a pid belongs to another process."""
    lab = cluster.peek()
    return node == socket.gethostname() or (lab is not None and lab.runs_here(node))


def _frames(pid: int, *, frozen: bool) -> list[dict]:
    """Return the frames of the thread that runs the training loop, innermost first; none without it."""
    command = [_py_spy(), "dump", "--json", "--pid", str(pid)]
    if frozen:  # py-spy cannot stop a process that is stopped
        command.append("--nonblocking")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    threads = json.loads(done.stdout)
    # Ray Train runs the loop in a thread of this name; a loop without it runs in the main thread.
    for thread in threads:
        if "TrainingThread" in (thread.get("thread_name") or ""):
            return thread["frames"]
    for thread in threads:
        if _own_frame(thread["frames"]) is not None:
            return thread["frames"]
    return []


def _own_frame(frames: list[dict]) -> dict | None:
    """Return the innermost frame of the reader's own code, if there is one."""
    return next((frame for frame in frames if is_own(frame["filename"])), None)


def _py_spy() -> str:
    """Return the path of py-spy: of this Python, or else one on the PATH."""
    own = Path(sys.executable).with_name("py-spy")
    if own.is_file():
        return str(own)
    return shutil.which("py-spy") or str(own)


def _doing(frames: list[dict]) -> Waiting:
    own = _own_frame(frames)
    where = ""
    if own is not None:
        where = f"{place(own['filename'])}, line {own['line']}"
        frames = frames[: frames.index(own)]
    for frame in frames:
        name = frame["name"].rpartition(".")[2]  # py-spy names a method with its class
        if name in _ALONE:
            return Waiting(f"waits for {_ALONE[name]}", where)
        if name in _FOR_OTHERS and any(package in frame["filename"] for package in _GROUPS):
            call = _FOR_OTHERS[name]
            return Waiting(f"waits in {call}", where, call)
    if frames:
        return Waiting(f"is in {frames[0]['name']}", where)
    if own is not None:
        return Waiting(f"is in your {own['name']}", where)
    return Waiting("has left the training function", where)
