"""How a process of Ray ended, in words.

Ray says that a process is gone, and rarely why: it sees a connection that closes. The fork server of a lab's
own cluster is the parent of most workers, so it knows their exit status or signal.
"""

import contextlib
import signal
import time

import psutil

from labkit import _ray, cluster
from labkit._ray import LOW_MEMORY
from labkit.files import text_of
from labkit.settings import attributes_set

_WAIT = 0.5  # seconds for the fork server to notice the end of a process
_BUSY = 20.0  # seconds that it may import something meanwhile
_ASKED = 10  # seconds that Ray's dashboard has to answer
_DETAIL_SHOWN = 200  # characters


def is_an_end(text: str) -> bool:
    """Return whether `text` is Ray's message on a process that is gone, and not a traceback."""
    return '  File "' not in text and (LOW_MEMORY in text or any(words in text for words in _ray.DIED))


def how_it_ended(text: str, pid: int | None = None) -> str:
    """Return how a process ended, from Ray's message on it, and from the fork server if that knows `pid`.

    `pid` is taken where the message names none, as when Ray hears late of a death.
    """
    if LOW_MEMORY in text:
        return "Ray killed it, because its node was running low on memory"
    if any(words in text for words in _ray.NODE_LOST):
        return "its node was lost"
    detail = _ray.DETAIL.search(text)
    status = _ray.STATUS.search(detail[1]) if detail else None
    if status is not None:
        how = status[1].strip().removesuffix(".")
        number, _, words = how.partition(". ")
        if number.isdigit():
            return f"it exited with status {number}" + (f" ({words})" if words else "")
        return f"it exited: {how}"
    code = exit_code(process_of(text, pid))
    if code is not None:
        return ended_with(code)
    reason = detail
    if detail is None or _ray.CONNECTION in detail[1]:
        reason = _ray.ENDED_BY_RAY.search(text)  # such as "it was killed by `ray.kill`"
    if reason is not None:
        return f"Ray says: {reason[1][:_DETAIL_SHOWN].strip()}"
    return "it may have crashed or been killed, and Ray doesn't know which"


def quiet_deaths() -> contextlib.AbstractContextManager[None]:
    """Keep Ray from printing, in the block, that a process died: a panel says it, without guesses."""
    return attributes_set(_ray.log_printer(), skip_re=_ray.PRINTED)


def process_of(text: str, otherwise: int | None = None) -> int | None:
    """Return the pid in Ray's message on an actor that died; without one, `otherwise` or what Ray knows."""
    pid = _ray.PID.search(text)
    if pid:
        return int(pid[1])
    return otherwise or _pid_of_actor(text)


def _pid_of_actor(text: str) -> int | None:
    """Return the pid of the actor that a message calls unavailable, if its node is here and still runs."""
    unavailable = _ray.UNAVAILABLE.search(text)
    lab = cluster.peek()
    if unavailable is None or lab is None:
        return None
    from ray.util import state  # takes a tenth of a second, and is rarely asked

    with contextlib.suppress(Exception):  # such as of a cluster that ends, or without a dashboard
        names = {node.id: node.name for node in lab.nodes}
        actor = state.get_actor(unavailable[1], address=lab.address, timeout=_ASKED)
        return actor.pid if lab.runs_here(names[actor.node_id]) else None
    return None


def exit_codes() -> dict[int, int]:
    """Return, by pid, how the workers ended that the lab forked."""
    lab = cluster.peek()
    return {} if lab is None else lab.exit_codes()


def exit_code(pid: int | None) -> int | None:
    """Return a worker's exit status, or minus the signal that ended it; None if the lab didn't fork it."""
    lab = cluster.peek()
    if lab is None or pid is None:
        return None
    asked = time.monotonic()
    while pid not in lab.exit_codes():
        waited = time.monotonic() - asked
        if waited > (_BUSY if _is_zombie(pid) else _WAIT):
            return None
        time.sleep(0.05)
    return lab.exit_codes()[pid]


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended, and its parent hasn't noticed."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return False


def ended_with(code: int) -> str:
    """Return the words for an exit status, or for minus the number of a signal."""
    if code >= 0:
        return f"it exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = "no name"
    more = ", as `kill -9` does, or the system when its memory runs out" if name == "SIGKILL" else ""
    return f"signal {-code} ({name}) ended it{more}"


def log_of(pid: int | None) -> str:
    """Return the path of what a worker of a lab's own cluster wrote to its stderr; "" if nothing is there."""
    logs = cluster.log_dir()
    if logs is None or pid is None:
        return ""
    for path in logs.glob(f"worker-*-{pid}.err"):
        # Ray's own marks, such as ":job_id:01000000", are in each of these files.
        if any(line.strip() and line[0] != ":" for line in text_of(path).splitlines()):
            return str(path)
    return ""


def more_in_log(pid: int | None) -> str:
    """Return where a worker's stderr is, as a part of a fix; "" if nothing is there."""
    log = log_of(pid)
    return f"the last lines of {log} say more" if log else ""
