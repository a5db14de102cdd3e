"""Fault injection: break a running training run on purpose, and read what that cost.

    fault = faults.kill_rank(1).at(panel, epoch=2, step=6)      # as the loop counts them, from 0
    with panel.watch(trainer):
        result = trainer.fit()
    fault                                                       # what was done, and what it cost

A fault happens at its moment and undoes itself. Only processes that the lab has recorded are touched. What
cannot be done is refused, and the card of the fault says why.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Self

import psutil

from labkit.display import cards
from labkit.display.formatting import duration
from labkit.errors import BadInput, LabError, NotReachable
from labkit.local import family
from labkit.local.lab import Lab
from labkit.panel.panel import Panel
from labkit.settings import Settings

__all__ = [
    "Fault",
    "drain_node",
    "freeze_rank",
    "kill_controller",
    "kill_rank",
    "slow_rank",
]

_EVERY = 0.02  # seconds between two looks
_PERIOD = 0.1  # seconds in which a slowed process runs once and stops once
_STEPS_AGAIN = 5  # events of rank 0 after which training goes on; one or two may still have been on their way
_Action = Generator[str, None, None]
_Victims = Callable[[Panel | None], list[psutil.Process]]


@dataclass(repr=False, eq=False)
class Fault:
    """Something that is broken on purpose. Displays itself: what was done, and what it cost."""

    name: str  # what it breaks, such as "kill rank 1"
    # Breaks it, for the panel of a run or for None, and yields what was done; then it may go on for a while,
    # with a short ``yield ""`` again and again, and undo it in its ``finally``.
    act: Callable[[Panel | None], _Action]
    kills: bool = False  # whether it kills workers, so that a run goes on with new ones, or ends
    outcome: str = "not armed"  # "armed", "made", "refused" (`did` says why) or "missed" (no run came there)
    did: str = ""  # what was done, to which process; or why it was refused or missed
    moment: tuple[int, int] | None = None  # (epoch, step) of rank 0 at that time, both from 0
    noticed: float | None = None  # seconds until the panel heard of a failure, or of a new process
    standstill: float | None = None  # seconds without a step of rank 0; after a kill, all from the kill on
    repeated: int | None = None  # steps that rank 0 trained a second time, as no checkpoint had them
    _panel: Panel | None = None
    _thread: threading.Thread | None = None

    def at(self, panel: Panel, *, epoch: int = 0, step: int = 0) -> Self:
        """Arm it: it is made when rank 0 of the panel's next run is at `step` of `epoch`, both from 0."""
        fact = ""
        if self._thread is not None:
            fact = "it was armed before"
        elif not isinstance(panel, Panel):
            fact = f"{panel!r} has no epochs and no ranks"
        if fact:
            raise BadInput(
                f"arm the fault {self.name!r}",
                fact,
                "make a new one; during a sweep or a pipeline, call its now() in a thread of its own",
            )
        return self._arm(panel, (epoch, step))

    def now(self) -> Self:
        """Make it at once, and wait until it is undone."""
        return self._arm(None, (0, 0)).wait()

    def _arm(self, panel: Panel | None, moment: tuple[int, int]) -> Self:
        self.outcome = "armed"
        self._panel = panel
        # In a thread of its own, because fit() keeps the cell's.
        self._thread = threading.Thread(
            target=self._run,
            args=[moment],
            name="labkit-fault",
            daemon=True,
        )
        self._thread.start()
        return self

    def wait(self, seconds: float | None = None) -> Self:
        """Wait until it is over: made, undone and, during a run, training again."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.outcome}"]
        for name, text in self._rows():
            lines.append(f"{name}: {text}")
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        colour = {"made": "ok", "armed": "dim"}.get(self.outcome, "wait")
        table = cards.rule(cards.table((), self._rows()))
        return str(cards.card(f"Fault: {self.name}", (colour, self.outcome), table))

    def _rows(self) -> list[tuple[str, str]]:
        rows = []
        if self.did:
            rows.append(("done", self.did))
        if self.moment:
            epoch, step = self.moment
            rows.append(("at", f"epoch {epoch + 1}, step {step}"))
        if self.noticed:
            rows.append(("noticed after", duration(self.noticed)))
        if self.standstill:
            rows.append(("no step for", duration(self.standstill)))
        if self.repeated is not None:
            rows.append(("steps trained twice", str(self.repeated)))
        return rows

    def _run(self, moment: tuple[int, int]) -> None:
        if not self._reached(moment):
            self.outcome = "missed"
            self.did = "nothing: the run ended before that moment"
            return
        try:
            with contextlib.closing(self.act(self._panel)) as action:
                self._follow(action)
        except (LabError, psutil.Error, OSError) as error:
            self.outcome = "refused"
            self.did = str(error)

    def _reached(self, moment: tuple[int, int]) -> bool:
        """Wait for the moment. Return False if the run ended before."""
        if self._panel is None:
            return True
        earlier = self._panel.run_id if self._panel.state.over else None
        while self._panel.run_id == earlier or not self._panel.state.over:
            position = self._position()
            if self._panel.run_id != earlier and position is not None and position[1:] >= moment:
                return True
            time.sleep(_EVERY)
        return False

    def _follow(self, action: _Action) -> None:
        """Make the fault, and look until it is undone and rank 0 makes steps again, or the run is over."""
        before = self._position()
        self.moment = None if before is None else before[1:]
        if self._panel is None:
            self._do(action)
            for _ in action:
                time.sleep(_EVERY)
            return
        state = self._panel.state
        failures = len(state.failures)
        repeated = state.repeated
        self._do(action)
        made = time.monotonic()
        moved = made  # when rank 0 was last heard
        steps = 0  # since the fault was undone
        undone = False
        while not (undone and (state.over or steps >= _STEPS_AGAIN)):
            undone = next(action, None) is None or state.over
            time.sleep(_EVERY)
            now = time.monotonic()
            position = self._position()
            has_moved = position is not None and position != before
            is_new_process = bool(position and before and position[0] != before[0])
            has_failed = len(state.failures) > failures
            if self.noticed is None and (is_new_process or has_failed):
                self.noticed = now - made
            if is_new_process:
                # Steps from before a kill may arrive late, so the time since the latest of them says little.
                stopped = made if self.kills else moved
                self.standstill = now - stopped
                self.repeated = state.repeated - repeated
                steps = _STEPS_AGAIN
            elif has_moved and self.noticed is None and not self.kills:
                self.standstill = max(self.standstill or 0.0, now - moved)
                if undone:
                    steps += 1
            if has_moved:
                before = position
                moved = now

    def _do(self, action: _Action) -> None:
        self.did = next(action)
        self.outcome = "made"

    def _position(self) -> tuple[int, int, int] | None:
        """Return pid, epoch and step of rank 0; before its first batch it is not in an epoch."""
        leader = self._panel.state.workers.leader if self._panel is not None else None
        if leader is None or not leader.begun:
            return None
        return leader.pid, leader.epoch, leader.step


def kill_rank(rank: int) -> Fault:
    """Kill the process of one rank (SIGKILL), as the kernel does when memory runs out."""
    return kill(f"kill rank {rank}", lambda panel: _rank(panel, rank))


def freeze_rank(rank: int, *, seconds: float = 3.0) -> Fault:
    """Stop the process of one rank for a while (SIGSTOP), as a disk or a network that hangs does."""
    return freeze(f"freeze rank {rank}", lambda panel: _rank(panel, rank), seconds)


def slow_rank(rank: int, *, share: float = 0.5, seconds: float = 5.0) -> Fault:
    """Let one rank run for a `share` (0 to 1) of the time only: a straggler, for which all others wait."""
    if not 0 < share < 1:
        raise BadInput(
            f"slow rank {rank} down",
            f"share is {share!r}",
            "pass a number between 0 and 1",
        )
    return freeze(f"slow rank {rank} down", lambda panel: _rank(panel, rank), seconds, share)


def drain_node(name: str, *, deadline: float = 10.0) -> Fault:
    """Announce that a node goes away in `deadline` seconds, as a cloud does before it takes a spot machine.

    A loop sees the notice by `ray.train.get_preemption_info()`. Ray moves the workers at the deadline.
    """

    def act(panel: Panel | None) -> _Action:
        # What `ray drain-node` does; the command takes seconds to import Ray, often the whole deadline.
        from ray._raylet import GcsClient
        from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

        from labkit.local import cluster

        node_processes(panel, name)  # one of the lab's, and not the head
        lab = cluster.current()
        ids = [node.id for node in lab.nodes if node.name == name] if lab is not None else []
        if lab is None or not ids:
            raise BadInput(
                f"drain {name}",
                "Ray does not list it",
                "see lab.nodes for those that live",
            )
        ends = int((time.time() + deadline) * 1000)
        client = GcsClient(address=lab.address)
        accepted, reason = client.drain_node(
            ids[0],
            DRAIN_NODE_REASON_PREEMPTION,
            "course.faults",
            ends,
        )
        if not accepted:
            raise NotReachable(
                f"drain {name}",
                f"Ray refused: {reason}",
                "see the head's logs, in lab.log_dir",
            )
        yield f"a preemption notice: {deadline:g} s left"
        yield from _ticks(deadline)

    return Fault(f"drain {name}", act)


def kill_controller() -> Fault:
    """Kill the process that directs the run's workers. `fit()` raises, and nothing repeats it."""

    def victims(panel: Panel | None) -> list[psutil.Process]:
        for member in running(panel):
            with contextlib.suppress(psutil.Error):
                if "TrainController" in " ".join(member.process.cmdline()):
                    return [member.process]
        raise BadInput("kill the controller", "none runs here", "use a trainer of Ray Train")

    return kill("kill the controller", victims)


def kill(name: str, victims: _Victims) -> Fault:
    """Make a fault that kills what `victims` finds."""

    def act(panel: Panel | None) -> _Action:
        yield f"SIGKILL to {_send(victims(panel), signal.SIGKILL)}"

    return Fault(name, act, kills=True)


def freeze(name: str, victims: _Victims, seconds: float, share: float = 0.0) -> Fault:
    """Make a fault that stops what `victims` finds for `seconds`, or for all but a `share` of them."""

    def act(panel: Panel | None) -> _Action:
        frozen = victims(panel)
        try:
            did = f"SIGSTOP to {_send(frozen, signal.SIGSTOP)} for {seconds:g} s"
            if share:
                did += f", which runs {share:.0%} of it"
            yield did
            for tick in _ticks(seconds):
                if share:
                    _send(frozen, signal.SIGCONT)
                    time.sleep(_PERIOD * share)
                    _send(frozen, signal.SIGSTOP)
                    time.sleep(_PERIOD * (1 - share))
                yield tick
        finally:
            _send(frozen, signal.SIGCONT)

    return Fault(name, act)


def _ticks(seconds: float) -> _Action:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield ""


def running(panel: Panel | None, group: str = family.CLUSTER, node: str | None = None) -> list[family.Member]:
    """List what the lab has started and runs in a run's home; without a run, in this process's home."""
    settings = Settings.from_env() if panel is None else panel.settings
    return Lab(settings.home).running(group, node)


def _rank(panel: Panel | None, rank: int) -> list[psutil.Process]:
    if panel is None:
        raise BadInput(f"touch rank {rank}", "no run was named", "arm it with fault.at(panel)")
    workers = panel.state.workers
    worker = workers.get(rank)
    if worker is not None:
        for member in running(panel):
            # On another machine, the same pid is another process.
            if member.pid == worker.pid and member.node == worker.node:
                return [member.process]
    ranks = [f"{number} on {worker.node}" for number, worker in sorted(workers.items())]
    raise BadInput(
        f"touch rank {rank}",
        f"the lab has started no process of it on this machine; this run has the ranks {', '.join(ranks)}",
        "name one that runs here, on a cluster of cluster.start()",
    )


def node_processes(panel: Panel | None, name: str) -> list[psutil.Process]:
    """List all processes of a node that the lab has started, and that is not the head."""
    others = {member.node for member in running(panel)} - {"", "head"}
    if name not in others:
        fact = "the lab has started no such node"
        if name == "head":
            fact = "the cluster would end"
        raise BadInput(
            f"touch {name}",
            fact,
            f"name one of {', '.join(sorted(others))}, or lab.add_node()",
        )
    return [member.process for member in running(panel, node=name)]


def _send(processes: list[psutil.Process], number: int) -> str:
    """Send a signal to each process, and return a text that names them."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            process.send_signal(number)
    if len(processes) == 1:
        return f"process {processes[0].pid}"
    return f"{len(processes)} processes"
