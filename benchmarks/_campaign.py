"""Random faults at random moments of random small runs, and what must hold after each of them.

Run K of a seed is always the same run with the same fault, so this makes it again:

    python -m benchmarks faults --campaign 1 --seed S --first K

All runs share one cluster of two nodes and one object store; those of Keras have others, because PyTorch and
TensorFlow never meet. After each run

- every checkpoint that Ray lists is whole, and has the weights of an undisturbed run at that epoch;
- nothing was trained again that a checkpoint had when the fault was made;
- the last model equals an undisturbed run's; all validations, trials and blocks have ended well;
- no worker, placement group, stopped process, open port, temporary folder or secret is left;
- a run that ended did so with an error of the lab's, and goes on when it is run again.
"""

import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

from benchmarks import _campaign_runs as runs
from course import faults
from course.models import KERAS_2
from labkit.errors import LabError
from labkit.local import cluster, family, storage
from labkit.settings import Settings

_TRAIN = ("kill rank", "freeze rank", "slow rank", "freeze store", "kill controller")
_ANY = ("freeze node", "kill node", "drain node", "kill kernel")
KINDS = {
    "torch": (*_TRAIN, *_ANY, "damage checkpoint"),
    "validation": (*_TRAIN, *_ANY),
    "tune": (*_ANY, "freeze store"),
    "data": (*_ANY, "freeze store"),
    "keras": _TRAIN,
}
_MAKERS = {"tune": runs.sweep, "data": runs.pipeline}
_CPUS = 3  # of each node
_WITHIN = 120.0  # seconds until Ray has ended what a run has used; on a quiet machine it takes two
_RAYS_OWN = ("IDLE", "_StatsActor", "_AutoscalingCoordinatorActor", "DashboardAgent", "RuntimeEnvAgent")
_KEPT = ("torchinductor_root", "_ray_lockfiles")  # folders that torch and Ray use again
# TensorFlow removes the source that it has generated when a process exits, and Ray Train kills its workers;
# Python keeps what it has compiled of it.
_KEPT += ("__autograph_generated_file", "__pycache__")
_Figures = dict[str, float]


class Broken(Exception):
    """Something that must hold after a fault does not."""


@dataclass(frozen=True)
class Plan:
    """One run and its fault; `share` is the part of its steps that comes before the fault."""

    seed: int
    number: int
    kind: str
    fault: str
    share: float
    rank: int
    seconds: float
    epochs: int
    steps: int

    @classmethod
    def draw(cls, seed: int, number: int) -> "Plan":
        """The same for the same seed and number."""
        rng = random.Random(f"{seed}-{number}")
        kind = rng.choice(list(KINDS))
        moment = rng.choice(KINDS[kind]), rng.random(), rng.randrange(2), round(rng.uniform(0.3, 1.5), 1)
        return cls(seed, number, kind, *moment, rng.randint(3, 4), rng.randint(6, 12))


class World:
    """What all runs share: a cluster of two nodes, a store, and a folder for temporary files."""

    def __init__(self, lab: cluster.Cluster, store: storage.Store, home: Path) -> None:
        self.lab, self.store, self.home = lab, store, home
        self.secrets = [store.read_keys()[1], (home / "ray-token").read_text().strip()]

    @classmethod
    @contextlib.contextmanager
    def started(cls, preload: str = "torch") -> Iterator["World"]:
        """Start it, or find this home's; stop it in the end."""
        settings = Settings.from_env()
        folder = settings.make_home() / "tmp"
        folder.mkdir(exist_ok=True)
        environment = dict(os.environ)
        # By default Tune saves a sweep each ten seconds, which is longer than ours take.
        own = {"TMPDIR": str(folder), "LABKIT_PANEL": "none", "TUNE_GLOBAL_CHECKPOINT_S": "0"}
        os.environ.update(own)
        tempfile.tempdir = None
        how = {"cpus_per_node": _CPUS, "preload": preload, "settings": settings}
        try:
            lab = again(lambda: cluster.start(nodes=2, **how))
            with lab, storage.start(settings=settings) as store:
                yield cls(lab, store, settings.home)
        finally:
            os.environ.clear()
            os.environ.update(environment)
            tempfile.tempdir = None

    @property
    def spare(self) -> str:
        """The name of the node that may be lost."""
        return next(node.name for node in self.lab.nodes if node.name != "head")

    def fault(self, plan: Plan) -> faults.Fault:
        """The fault of a plan, not armed."""
        rank, seconds = plan.rank, plan.seconds
        return {
            "kill rank": lambda: faults.kill_rank(rank),
            "freeze rank": lambda: faults.freeze_rank(rank, seconds=seconds),
            "slow rank": lambda: faults.slow_rank(rank, share=0.3, seconds=seconds),
            "kill node": lambda: _kill_node(self.spare),
            "freeze node": lambda: _freeze_node(self.spare, seconds),
            "drain node": lambda: faults.drain_node(self.spare, deadline=1 + rank),
            "freeze store": lambda: _freeze_store(seconds),
            "kill controller": faults.kill_controller,
            "damage checkpoint": faults.kill_controller,  # and then `_damage`
            "kill kernel": lambda: faults.Fault("kill the kernel", _kill_this_process),
        }[plan.fault]()

    def listed(self, name: str) -> list[Any]:
        """The checkpoints that Ray lists for a run of Ray Train, as the store has them."""
        from labkit.train import reported_checkpoints

        path = self.store.storage_path("campaign", name)
        there = self.store.files.exists(f"{path}/checkpoint_manager_snapshot.json")
        return reported_checkpoints(path, self.store.filesystem) if there else []

    def held(self) -> set[str]:
        """The ports on which this process listens, and the temporary folders of all processes."""
        ports = [one.laddr.port for one in psutil.Process().net_connections() if one.status == "LISTEN"]
        names = {one.name for one in Path(tempfile.gettempdir()).iterdir() if not one.name.startswith(_KEPT)}
        return {f"port {port}" for port in ports} | {f"folder {name}" for name in names}

    def left(self, before: set[str], *, killed: bool) -> list[str]:
        """What a run has left. A killed process leaves its temporary folders, as anywhere."""
        free = ray.available_resources().get("CPU", 0)
        found = [] if free == self.lab.cpus else [f"{free:g} of {self.lab.cpus:g} CPUs are free"]
        groups = ray.util.placement_group_table().items()
        found += [f"placement group {number}" for number, group in groups if group["state"] != "REMOVED"]
        for process in [one.process for one in family.running(self.home)]:
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                busy = title.startswith("ray::") and not title[5:].startswith(_RAYS_OWN)
                if busy or process.status() == psutil.STATUS_STOPPED:
                    found.append(f"process {process.pid}, {title.strip()[:80]}")
                if any(secret in title for secret in self.secrets):
                    found.append(f"a secret in the command line of process {process.pid}")
        return found + [one for one in self.held() - before if not (killed and one.startswith("folder"))]

    def heal(self, lost: str | None) -> None:
        """Wait until a node is gone that the fault has taken, and add another one."""
        deadline = time.time() + _WITHIN
        while lost in [node.name for node in self.lab.nodes]:
            if time.time() > deadline:
                raise Broken(f"{lost} is still listed")
            time.sleep(0.1)
        if len(self.lab.nodes) < 2:
            again(lambda: self.lab.add_node(cpus=_CPUS))


def _kill_node(name: str) -> faults.Fault:
    """Kill all processes of a node (SIGKILL), as if its plug were pulled."""
    return faults.kill(f"kill {name}", lambda panel: faults.node_processes(panel, name))


def _freeze_store(seconds: float) -> faults.Fault:
    """Stop the lab's object store for a while: requests are neither answered nor refused."""

    def victims(panel: Any) -> list[psutil.Process]:
        return [one.process for one in faults.running(panel, family.STORE)]

    return faults.freeze("freeze the store", victims, seconds)


def _freeze_node(name: str, seconds: float) -> faults.Fault:
    """Stop all processes of a node for a while: for the others, its network is cut."""
    return faults.freeze(f"freeze {name}", lambda panel: faults.node_processes(panel, name), seconds)


def _kill_this_process(_: Any) -> Iterator[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield "never seen"


def again(start: Callable[[], Any]) -> Any:
    """What `start` returns: on a busy machine a node of Ray may give up its start after 30 s."""
    for _ in range(3):
        with contextlib.suppress(LabError):
            return start()
    return start()


# -- one run ---------------------------------------------------------------------------------------


def attempt(plan: Plan, name: str, world: World, fault: faults.Fault | None) -> tuple[Any, Any, float]:
    """Run it once, with a fault or without: (panel, result or LabError, when the fault was made or 0)."""
    log = world.home / "steps" / name
    log.parent.mkdir(exist_ok=True)
    config = {"kind": plan.kind, "log": str(log), "epochs": plan.epochs, "steps": plan.steps}
    panel, fit = _MAKERS.get(plan.kind, runs.train)(name, config, world.store)
    made: list[float] = []

    def strike() -> None:
        if plan.kind in _MAKERS:  # whose panels have no rank 0 to go by
            total = plan.epochs * (plan.steps if plan.kind == "data" else runs.TRIALS)
            while len(_steps_in(log)) < plan.share * total and not panel.state.over:
                time.sleep(0.005)
            fault.now()
        while fault.outcome == "armed":
            time.sleep(0.005)
        if fault.outcome == "made":
            made.append(time.time())
        fault.wait(300)

    if fault is not None:
        if plan.kind not in _MAKERS:
            epoch, step = divmod(int(plan.share * plan.epochs * plan.steps), plan.steps)
            fault.at(panel, epoch=epoch, step=step)
        striker = threading.Thread(target=strike, daemon=True)
        striker.start()
    try:
        with panel:
            result = fit()
    except LabError as error:
        result = error
    if fault is not None:
        striker.join(300)
    return panel, result, made[0] if made else 0.0


def _begin_and_kill(plan: Plan, name: str) -> float:
    """Begin the run in a process of its own, on the same cluster, and kill that; when it was dead."""
    command = [sys.executable, "-m", "benchmarks._campaign", str(plan.seed), str(plan.number), name]
    root = Path(__file__).parents[1]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    if child.returncode == 0:
        return 0.0  # its moment never came
    if child.returncode != -9:
        raise Broken(f"the process to be killed ended with {child.returncode}: {child.stderr[-500:]}")
    return time.time()


def _damage(plan: Plan, name: str, world: World) -> None:
    """Cut the newest checkpoint in half: nothing may go on from it. Then put it back."""
    if kept := world.listed(name):
        path, files = f"{kept[-1].checkpoint.path}/state.json", world.store.files
        whole = files.cat_file(path)
        files.pipe_file(path, whole[: len(whole) // 2])
        _, result, _ = attempt(plan, name, world, None)
        files.pipe_file(path, whole)
        if not isinstance(result, LabError) or "JSONDecodeError" not in str(result):
            raise Broken(f"a run went on from half a checkpoint: {result}")


def one(plan: Plan, world: World) -> _Figures:
    """Make a run with its fault; the seconds until it was noticed, and until steps were made again.

    Raises:
        Broken: something does not hold.
    """
    name = f"{plan.seed}-{plan.number}-{os.urandom(2).hex()}"
    log, before, began, spare = world.home / "steps" / name, world.held(), time.time(), world.spare
    kept, said, figures = -1, "", _Figures()
    if plan.fault == "kill kernel":
        at, result = _begin_and_kill(plan, name), None
        if plan.kind not in _MAKERS:
            kept = max((one.metrics["epoch"] for one in world.listed(name)), default=-1)
    else:
        fault = world.fault(plan)
        panel, result, at = attempt(plan, name, world, fault)
        if fault.outcome == "refused":
            raise Broken(f"the fault was refused: {fault.did}")
        said = f"{fault!r} {result if isinstance(result, LabError) else ''}"
        if isinstance(result, LabError) or fault.noticed is not None:
            figures["noticed"] = time.time() - at if fault.noticed is None else fault.noticed
        points = getattr(panel.state, "checkpoints", ())
        kept = max((point.epoch - 1 for point in points if point.committed_at < at), default=-1)
    if plan.fault == "damage checkpoint" and isinstance(result, LabError):
        _damage(plan, name, world)
    if result is None or isinstance(result, LabError):
        _, result, _ = attempt(plan, name, world, None)
        if isinstance(result, LabError):
            raise Broken(f"the run did not go on: {result}")
    if at:
        figures["without a step"] = _check_steps(plan, log, kept, at)
    _check_model(plan, name, world, result)
    said += "".join(path.read_text() for path in (world.home / "runs" / name).rglob("*.json"))
    if any(secret in said for secret in world.secrets):
        raise Broken("a secret is in the card, the error or the record of the run")
    world.heal(spare if at and plan.fault in ("kill node", "drain node") else None)
    killed = "kill" in plan.fault or plan.fault in ("damage checkpoint", "drain node")
    deadline = time.time() + _WITHIN
    while left := world.left(before, killed=killed):
        if time.time() > deadline:
            raise Broken("left over: " + "; ".join(left))
        time.sleep(0.1)
    return {**figures, "all of it": time.time() - began}


# -- what must hold --------------------------------------------------------------------------------


def _steps_in(log: Path) -> list[tuple[float, str, int, int, int]]:
    """(time, key, pid, epoch, step) of all steps that were made, in their order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(float(t), key, *map(int, rest)) for t, key, *rest in map(str.split, lines)]


def _check_steps(plan: Plan, log: Path, kept: int, at: float) -> float:
    """Nothing was trained again up to epoch `kept`; the longest time without a step that ended after `at`."""
    last: dict[str, tuple[float, int, int]] = {}  # key → (time, pid, epoch)
    longest = 0.0
    for moment, key, pid, epoch, _ in _steps_in(log):
        then, before, reached = last.get(key, (at, pid, epoch))
        # Of a trial, one epoch may be on its way to the store, and one in the making.
        had = reached - 2 if plan.kind == "tune" else kept
        if pid != before and epoch <= had and plan.kind != "data":
            raise Broken(f"{key} went on with epoch {epoch}, and the checkpoint of epoch {had} was there")
        longest = max(longest, moment - then if moment > at else 0.0)
        last[key] = moment, pid, epoch
    return longest


def _check_model(plan: Plan, name: str, world: World, result: Any) -> None:
    """The result equals an undisturbed run's, and so are all checkpoints."""
    if plan.kind == "data":
        if result != [number**2 for number in range(plan.epochs * plan.steps)]:
            raise Broken(f"the pipeline gave {len(result)} rows, or others than it should")
        return
    trials = list(result) if plan.kind == "tune" else [result]
    if plan.kind == "tune" and (len(trials), result.num_errors) != (runs.TRIALS, 0):
        raise Broken(f"{len(trials)} trials, {result.num_errors} of them with errors")
    listed = [] if plan.kind == "tune" else world.listed(name)
    for trial in trials:
        weights, rate = [np.zeros((runs.WIDTH, 1))], runs.RATE if listed else trial.config["rate"]
        for epoch in range(plan.epochs):
            weights.append(runs.descend(weights[-1], epoch, plan.steps, rate))
        found = [
            runs.load(checkpoint) for checkpoint in (*(one.checkpoint for one in listed), trial.checkpoint)
        ]
        off = max(float(np.abs(now - weights[done]).max()) for done, now in found)
        if found[-1][0] != plan.epochs or off > 1e-5:
            raise Broken(f"the last checkpoint is of epoch {found[-1][0] - 1}; weights differ by {off:.1e}")
        if listed and [done for done, _ in found[:-1]] != list(range(1, plan.epochs + 1)):
            raise Broken(f"checkpoints of the epochs {[done - 1 for done, _ in found[:-1]]} are listed")
    for one in listed if plan.kind == "validation" else ():
        if (
            one.status.value != "VALIDATED"
            or one.metrics.get("norm") != runs.validate(one.checkpoint)["norm"]
        ):
            raise Broken(f"a validation ended as {one.status.value} with {one.metrics}")


# -- all of it -------------------------------------------------------------------------------------


def campaign(plans: list[Plan]) -> Iterator[tuple[Plan, _Figures | str]]:
    """Make all runs, those of Keras last: each with its figures, or with what does not hold."""
    todo = sorted(plans, key=lambda plan: plan.kind == "keras")
    while todo:
        keras = todo[0].kind == "keras"
        if keras:
            os.environ.update(KERAS_2)
        with World.started("tensorflow" if keras else "torch") as world:
            while todo and (todo[0].kind == "keras") == keras:
                plan = todo.pop(0)
                try:
                    yield plan, one(plan, world)
                except Exception as error:
                    yield plan, f"{type(error).__name__}: {error}"
                    break  # what it has left must not harm the others


def report(numbers: range, seed: int) -> int:
    """Make a campaign, print it run by run and fault by fault; how many runs broke something."""
    seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    made = broken = 0
    try:
        for plan, found in campaign([Plan.draw(seed, number) for number in numbers]):
            made += 1
            who = f"{plan.number}: {plan.kind}, {plan.fault} at {plan.share:.0%}"
            if isinstance(found, str):
                broken += 1
                print(f"{who}: BROKEN: {found}", flush=True)
                continue
            print(
                f"{who}: " + ", ".join(f"{what} {spent:.1f} s" for what, spent in found.items()), flush=True
            )
            for what, spent in found.items():
                seconds[plan.fault][what].append(spent)
                seconds[f"all of {plan.kind}"][what].append(spent)
    finally:  # also when it was interrupted
        for of, figures in sorted(seconds.items()):
            told = [f"{what} {statistics.median(s):.1f}, at most {max(s):.1f}" for what, s in figures.items()]
            print(f"| {of} | {len(figures['all of it'])} | {' | '.join(told)} |")
        print(f"{made - broken} of {made} runs kept what was promised")
    return broken


if __name__ == "__main__":  # the process that is killed
    _plan = Plan.draw(int(sys.argv[1]), int(sys.argv[2]))
    with World.started() as _world:
        attempt(_plan, sys.argv[3], _world, _world.fault(_plan))
