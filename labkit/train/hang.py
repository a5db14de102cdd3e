"""What the ranks of a run that hangs are waiting for.

py-spy, which comes with Ray, reads the stack of a rank in some hundredths of a second. Compared with each
other, the stacks of all ranks tell for whom the others wait.
"""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

from labkit import cluster
from labkit.display.tracebacks import is_own, place
from labkit.panel.workers import WorkerState

_TIMEOUT = 10.0  # seconds for one rank

# What a rank is doing, by the names of functions on its stack, innermost first. Some are private names of
# torch and Ray: without them, the innermost function is named.
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

    what: str
    where: str = ""  # the reader's own line, such as "in a cell, line 12", if one is on the stack
    call: str = ""  # in which it waits for the other ranks

    def __str__(self) -> str:
        return self.what + (f" ({self.where})" if self.where else "")


def explain(workers: Iterable[WorkerState]) -> list[str]:
    """One line for each rank, and one on which rank the others wait for, if the stacks tell."""
    workers = sorted(workers, key=lambda worker: worker.rank)
    found = {worker.rank: _look(worker) for worker in workers if _is_here(worker.node)}
    away = "its process {0.pid} is on another machine ({0.node})"
    lines = [f"rank {one.rank}: {found.get(one.rank) or away.format(one)}" for one in workers]
    if len(found) < len(workers):
        return lines  # the guilty one may be among those that were not seen
    guilty = [rank for rank, one in found.items() if not one.call]
    early, late = ([rank for rank in found if (found[rank].call == _REPORT) is it] for it in (True, False))
    if 0 < len(guilty) < len(found):
        lines.append(f"The others wait for {_names(guilty)}.")
    elif not guilty and early and late:
        why = f"{_names(early)} made fewer steps, or {_names(late)} reported less often"
        lines.append(f"They wait for each other in different calls: {why}.")
    return lines


def _names(ranks: list[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in ranks)


def _look(worker: WorkerState) -> Waiting:
    process, frozen = f"its process {worker.pid}", False
    try:
        frozen = psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED
        doing = _doing(_frames(worker.pid, frozen=frozen))
    except psutil.NoSuchProcess:
        return Waiting(f"{process} has ended")
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        hint = "; sudo sysctl kernel.yama.ptrace_scope=0 allows it" if "ermission" in said else ""
        doing = Waiting(f"py-spy cannot read its stack{hint}")
    return Waiting(f"{process} is frozen: kill -CONT {worker.pid}", doing.where) if frozen else doing


def _is_here(node: str) -> bool:
    """Whether a worker's node is this machine or container: elsewhere, its pid belongs to another process."""
    lab = cluster.peek()
    return node == socket.gethostname() or (lab is not None and lab.runs_here(node))


def _frames(pid: int, *, frozen: bool) -> list[dict]:
    """The frames of the thread that runs the training loop, innermost first; none without it."""
    command = [_py_spy(), "dump", "--json", "--pid", str(pid)]
    command += ["--nonblocking"] * frozen  # py-spy cannot stop a process that is stopped
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    threads = json.loads(done.stdout)
    # Ray Train runs the loop in a thread of this name; a loop without it runs in the main thread.
    named = [one for one in threads if "TrainingThread" in (one.get("thread_name") or "")]
    own = [one for one in threads if any(is_own(frame["filename"]) for frame in one["frames"])]
    return (named or own or [{"frames": []}])[0]["frames"]


def _py_spy() -> str:
    """Return the path of py-spy: of this Python, or else one on the PATH."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.is_file() else shutil.which("py-spy") or str(own)


def _doing(frames: list[dict]) -> Waiting:
    own = next((frame for frame in frames if is_own(frame["filename"])), None)
    where = f"{place(own['filename'])}, line {own['line']}" if own else ""
    inner = frames[: frames.index(own)] if own else frames
    for name in (frame["name"].rpartition(".")[2] for frame in inner):  # py-spy names a method with its class
        if name in _ALONE:
            return Waiting(f"waits for {_ALONE[name]}", where)
        if call := _FOR_OTHERS.get(name):
            return Waiting(f"waits in {call}", where, call)
    gone = "has left the training function"
    doing = f"is in {inner[0]['name']}" if inner else f"is in your {own['name']}" if own else gone
    return Waiting(doing, where)
