"""One call for each fault. Arm it before `fit()`; it happens at its moment, and undoes itself.

    fault = faults.kill_rank(1).at(panel, epoch=2, step=6)      # as the loop counts them, from 0
    with panel.watch(trainer):
        result = trainer.fit()
    fault                                                       # what was done, and what it cost

    faults.freeze_store(store, seconds=3).now()

Only processes that the lab has recorded are touched: no cluster of another user, and nothing else on this
machine. What cannot be made here is refused, and the card says why.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from labkit.errors import ClusterError, LabError, StorageError
from labkit.faults.fault import Fault
from labkit.panel.run import Panel
from labkit.settings import Settings
from labkit.system.process_registry import ProcessRegistry

if TYPE_CHECKING:
    from labkit.storage import Store

_SMALL_DISK = 1 << 30  # bytes: a larger one may be the one that your system is on
_PERIOD = 0.1  # seconds in which a slowed process runs once and stands still once
_Victims = Callable[[Panel | None], list[psutil.Process]]


def kill_rank(rank: int) -> Fault:
    """Kill the process of one rank (SIGKILL), as the kernel does when memory runs out."""
    return _kill(f"kill rank {rank}", lambda panel: _rank(panel, rank))


def freeze_rank(rank: int, *, seconds: float = 3.0) -> Fault:
    """Stop the process of one rank for a while (SIGSTOP), as a disk or a network that hangs does."""
    return _freeze(f"freeze rank {rank}", lambda panel: _rank(panel, rank), seconds)


def slow_rank(rank: int, *, share: float = 0.5, seconds: float = 5.0) -> Fault:
    """Let one rank run for a `share` (0 to 1) of the time only: a straggler, for which all others wait."""
    if not 0 < share < 1:
        raise ClusterError(f"slow rank {rank} down", f"share is {share!r}", "pass a number between 0 and 1")
    return _freeze(f"slow rank {rank} down", lambda panel: _rank(panel, rank), seconds, share)


def kill_node(name: str) -> Fault:
    """Kill all processes of a node (SIGKILL), as if its plug were pulled. The head is refused."""
    return _kill(f"kill {name}", lambda panel: _node(panel, name, "kill"))


def freeze_node(name: str, *, seconds: float = 3.0) -> Fault:
    """Stop all processes of a node for a while: for the others, its network is cut."""
    return _freeze(f"freeze {name}", lambda panel: _node(panel, name, "freeze"), seconds)


def drain_node(name: str, *, deadline: float = 10.0) -> Fault:
    """Announce that a node goes away in `deadline` seconds, as a cloud does before it takes a spot machine.

    A loop sees the notice by `ray.train.get_preemption_info()`. Ray moves the workers at the deadline.
    """

    def make(panel: Panel | None) -> str:
        from labkit import cluster

        _node(panel, name, "drain")  # one of the lab's, and not the head
        lab = cluster.current()
        found = [one.id for one in lab.nodes if one.name == name] if lab is not None else []
        if not found:
            raise ClusterError(f"drain {name}", "Ray does not list it", "see lab.nodes for those that live")
        if (refused := _announce(lab.address, found[0], deadline)) is not None:
            raise ClusterError(f"drain {name}", f"`ray drain-node` refused: {refused}", "see the head's logs")
        return f"a preemption notice: {deadline:g} s left"

    return Fault(f"drain {name}", make, seconds=deadline)


def _announce(address: str, node: str, deadline: float) -> str | None:
    """Do what `ray drain-node` does; returns why Ray refused, or None."""
    with contextlib.suppress(ImportError, AttributeError, TypeError, ValueError):  # of another Ray
        # The command takes seconds to import Ray, on a busy machine as long as the whole deadline.
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION as REASON
        from ray.exceptions import RayError

        ends = int((time.time() + deadline) * 1000)
        try:
            accepted, why = GcsClient(address=address).drain_node(node, REASON, "labkit.faults", ends)
        except RayError as error:
            return str(error)
        return None if accepted else why
    command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--address", address]
    command += ["--node-id", node, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", "labkit.faults", "--deadline-remaining-seconds", f"{deadline:.0f}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "it had no answer after 60 s"
    return " ".join((done.stderr or done.stdout).strip().splitlines()[-1:]) if done.returncode else None


def kill_controller() -> Fault:
    """Kill the process that directs the run's workers. `fit()` raises, and nothing repeats it."""

    def victims(panel: Panel | None) -> list[psutil.Process]:
        processes = _recorded(panel, "kill the controller")
        if found := [one for one in processes if "TrainController" in _title(one)]:
            return found
        raise ClusterError("kill the controller", "none runs here", "use a trainer of Ray Train")

    return _kill("kill the controller", victims)


def kill_kernel() -> Fault:
    """Kill this process, the notebook's kernel. The watchdog then stops what the lab has started."""

    def make(panel: Panel | None) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "never seen"

    return Fault("kill the kernel", make)


def freeze_store(store: "Store", *, seconds: float = 3.0) -> Fault:
    """Stop the embedded object store for a while: requests are neither answered nor refused."""

    def victims(panel: Panel | None) -> list[psutil.Process]:
        records = ProcessRegistry(_home(panel)).records()
        found = [psutil.Process(one.pid) for one in records if one.role == "object server" and one.alive]
        if not found or not store.endpoint.startswith("http://127.0.0.1:"):
            fact = f"the lab did not start {store.endpoint} on this machine"
            raise StorageError("freeze the store", fact, "use the embedded one: storage.start()")
        return found

    return _freeze("freeze the store", victims, seconds)


def fill_disk(folder: Path | str, *, seconds: float = 5.0) -> Fault:
    """Fill the disk of a folder for a while, and remove what filled it. Small disks only."""
    filler = Path(folder) / ".labkit-filler"

    def make(panel: Panel | None) -> str:
        size = shutil.disk_usage(folder).total
        if size > _SMALL_DISK:
            fact = f"it has {size / 1e9:,.0f} GB, and other programs use it too"
            fix = f"give the folder a small disk of its own: sudo mount -t tmpfs -o size=200m tmpfs {folder}"
            raise LabError(f"fill the disk of {folder}", fact, fix)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"\0" * (1 << 16)):
                pass
        return f"{filler.stat().st_size / 1e6:,.0f} MB written, for {seconds:g} s"

    return Fault("fill the disk", make, seconds=seconds, undo=lambda: filler.unlink(missing_ok=True))


def damage_checkpoint(checkpoint: Any) -> Fault:
    """Cut the largest file of a Ray Train checkpoint in half, as a machine that dies while it writes does."""

    def make(panel: Panel | None) -> str:
        from pyarrow import fs

        disk, everything = checkpoint.filesystem, fs.FileSelector(checkpoint.path, recursive=True)
        files = [one for one in disk.get_file_info(everything) if one.is_file]
        if not files:
            raise StorageError("damage the checkpoint", f"{checkpoint.path} has no file", "name another one")
        victim = max(files, key=lambda one: one.size)
        with disk.open_input_stream(victim.path) as file:
            half = file.read(victim.size // 2)
        with disk.open_output_stream(victim.path) as file:
            file.write(half)
        return f"{victim.base_name} had {victim.size:,} bytes and has {len(half):,}"

    return Fault("damage a checkpoint", make)


# -- what a fault may touch -------------------------------------------------------------------------------


def _recorded(panel: Panel | None, attempt: str) -> list[psutil.Process]:
    """All running processes of the clusters that the home of a run has a record of."""
    if panel is None:
        raise ClusterError(attempt, "no run was named", "arm it with fault.at(panel)")
    registry = ProcessRegistry(panel.settings.home)
    return [one for group in registry.groups() if group.startswith("ray-") for one in registry.members(group)]


def _rank(panel: Panel | None, rank: int) -> list[psutil.Process]:
    attempt = f"touch rank {rank}"
    processes = _recorded(panel, attempt)
    worker = panel.state.workers.get(rank)
    if worker is None:
        known = ", ".join(map(str, sorted(panel.state.workers)))
        raise ClusterError(attempt, f"this run has the ranks {known}", "name one of them")
    if found := [process for process in processes if process.pid == worker.pid]:
        return found
    fact = f"its process {worker.pid} is none that the lab started on this machine"
    raise ClusterError(attempt, fact, "use a cluster that cluster.start() has started here")


def _home(panel: Panel | None) -> Path:
    """That of the run; of this process, where a fault is made without a run."""
    return (Settings.from_env() if panel is None else panel.settings).home


def _node(panel: Panel | None, name: str, verb: str) -> list[psutil.Process]:
    registry = ProcessRegistry(_home(panel))
    records = [one for one in registry.records() if one.alive]
    nodes = {one.role.partition(":")[0] for one in records if one.role.endswith(": raylet")}
    if name not in nodes - {"head"}:
        head = name == "head"
        fact = "it is the head: the cluster would end" if head else "the lab has started no such node"
        others = ", ".join(sorted(nodes - {"head"})) or "lab.add_node() first"
        raise ClusterError(f"{verb} {name}", fact, f"one of these: {others}")
    sessions = {one.session: one.group_id for one in records if one.role.startswith(f"{name}:")}
    return [one for session, group in sessions.items() for one in registry.members(group, session=session)]


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _kill(name: str, victims: _Victims) -> Fault:
    def make(panel: Panel | None) -> str:
        processes = victims(panel)
        for process in processes:
            _send(process, signal.SIGKILL)
        return f"SIGKILL to {_who(processes)}"

    return Fault(name, make)


def _freeze(name: str, victims: _Victims, seconds: float, share: float = 0.0) -> Fault:
    """Stop processes for `seconds`; with a `share`, let them run for that part of the time."""
    frozen: list[psutil.Process] = []

    def send(number: int) -> None:
        for process in frozen:
            _send(process, number)

    def make(panel: Panel | None) -> str:
        frozen.extend(victims(panel))
        send(signal.SIGSTOP)
        partly = f", which runs {share:.0%} of it" if share else ""
        return f"SIGSTOP to {_who(frozen)} for {seconds:g} s{partly}"

    def during() -> None:
        if share:
            send(signal.SIGCONT)
            time.sleep(_PERIOD * share)
            send(signal.SIGSTOP)
            time.sleep(_PERIOD * (1 - share))

    def undo() -> None:
        send(signal.SIGCONT)
        frozen.clear()

    return Fault(name, make, seconds=seconds, during=during, undo=undo)


def _who(processes: list[psutil.Process]) -> str:
    return f"process {processes[0].pid}" if len(processes) == 1 else f"{len(processes)} processes"


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
        process.send_signal(number)
