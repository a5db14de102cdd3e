"""Random faults at random moments of random small runs, and what must hold after each of them.

Run K of a seed is always the same run with the same fault, so this makes it again:

    python -m benchmarks faults --campaign 1 --seed S --first K

All runs share one cluster of two nodes and one object store. After each run

- every checkpoint that Ray lists is whole, and has the weights of an undisturbed run at that epoch;
- nothing was trained again that a checkpoint had when the fault was made;
- the last model equals an undisturbed run's; all validations and trials have ended well;
- no worker, placement group, stopped process, open port, temporary folder or secret is left;
- a run that ended did so with an error of the lab's, and goes on when it is run again.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks import _campaign_runs as runs
from benchmarks import _left
from benchmarks._campaign_runs import Broken
from course import faults
from labkit.errors import LabError
from labkit.local import cluster, family, storage
from labkit.local.lab import Lab
from labkit.settings import Settings, variables_set

_ANY = ("freeze node", "kill node", "drain node", "kill kernel", "freeze store")
_TRAIN = (*_ANY, "kill rank", "freeze rank", "slow rank", "kill controller")
FAULTS = {"torch": (*_TRAIN, "damage checkpoint"), "validation": _TRAIN, "tune": _ANY}  # by the kind of run
_CPUS = 3  # of each node
_WITHIN = 120.0  # seconds until Ray has ended what a run has used; on a quiet machine it takes two


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
        """Draw a plan: the same for the same seed and number."""
        rng = random.Random(f"{seed}-{number}")
        kind = rng.choice(list(FAULTS))
        return cls(
            seed,
            number,
            kind,
            fault=rng.choice(FAULTS[kind]),
            share=rng.random(),
            rank=rng.randrange(2),
            seconds=round(rng.uniform(0.3, 1.5), 1),
            epochs=rng.randint(3, 4),
            steps=rng.randint(6, 12),
        )


class World:
    """The cluster of two nodes, the store and the folder for temporary files that all runs share."""

    def __init__(self, lab: cluster.Cluster, store: storage.Store, home: Path) -> None:
        self.lab = lab
        self.store = store
        self.home = home
        self.secrets = [store.read_keys()[1], (home / "ray-token").read_text().strip()]

    @classmethod
    @contextlib.contextmanager
    def started(cls) -> Iterator["World"]:
        """Start it, or find this home's; stop it in the end."""
        home = Settings.from_env().make_home()
        folder = home / "tmp"
        folder.mkdir(exist_ok=True)
        # By default Tune saves a sweep each ten seconds, which is longer than ours take.
        variables = {"TMPDIR": str(folder), "LABKIT_PANEL": "none", "TUNE_GLOBAL_CHECKPOINT_S": "0"}
        tempfile.tempdir = None
        with (
            variables_set(variables),
            again(lambda: cluster.start(nodes=2, cpus_per_node=_CPUS)) as lab,
            storage.start() as store,
        ):
            yield cls(lab, store, home)
        tempfile.tempdir = None

    @property
    def spare(self) -> str:
        """The name of the node that may be lost."""
        return next(node.name for node in self.lab.nodes if node.name != "head")

    def fault(self, plan: Plan) -> faults.Fault:
        """Make the fault of a plan, not armed."""
        match plan.fault:
            case "kill rank":
                return faults.kill_rank(plan.rank)
            case "freeze rank":
                return faults.freeze_rank(plan.rank, seconds=plan.seconds)
            case "slow rank":
                return faults.slow_rank(plan.rank, share=0.3, seconds=plan.seconds)
            case "kill node":  # as if its plug were pulled
                return faults.kill(f"kill {self.spare}", _node(self.spare))
            case "freeze node":  # for the others, its network is cut
                return faults.freeze(f"freeze {self.spare}", _node(self.spare), plan.seconds)
            case "drain node":
                return faults.drain_node(self.spare, deadline=1 + plan.rank)
            case "freeze store":  # requests are neither answered nor refused
                return faults.freeze("freeze the store", _store, plan.seconds)
            case "kill kernel":
                return faults.Fault("kill the kernel", _kill_this_process)
        return faults.kill_controller()  # also before `_damage`

    def held(self) -> set[str]:
        """The ports on which this process listens, and the temporary folders of all processes."""
        return _left.ports() | _left.folders(Path(tempfile.gettempdir()))

    def left(self, before: set[str], *, killed: bool) -> list[str]:
        """List what a run has left. A killed process leaves its temporary folders, as anywhere."""
        left = _left.of_cluster(self.lab.cpus)
        for member in Lab(self.home).running():
            with contextlib.suppress(psutil.Error):
                title = " ".join(member.process.cmdline())
                is_busy = title.startswith("ray::") and not _left.is_idle(title)
                if is_busy or member.process.status() == psutil.STATUS_STOPPED:
                    left.append(f"process {member.pid}, {title.strip()[:80]}")
                if any(secret in title for secret in self.secrets):
                    left.append(f"a secret in the command line of process {member.pid}")
        for new in self.held() - before:
            if not (killed and new.startswith("folder")):
                left.append(new)
        return left

    def heal(self, lost: str | None) -> None:
        """Wait until a node is gone that the fault has taken, and add another one."""
        deadline = time.time() + _WITHIN
        while lost in [node.name for node in self.lab.nodes]:
            if time.time() > deadline:
                raise Broken(f"{lost} is still listed")
            time.sleep(0.1)
        if len(self.lab.nodes) < 2:
            again(lambda: self.lab.add_node(cpus=_CPUS))


def _node(name: str) -> Callable[[Any], list[psutil.Process]]:
    return lambda panel: faults.node_processes(panel, name)


def _store(panel: Any) -> list[psutil.Process]:
    return [member.process for member in faults.running(panel, family.STORE)]


def _kill_this_process(_: Any) -> Iterator[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield "never seen"


def again(start: Callable[[], Any]) -> Any:
    """Return what `start` returns, after three tries: a node may give up its start on a busy machine."""
    for _ in range(3):
        with contextlib.suppress(LabError):
            return start()
    return start()


# -- one run ---------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """How one attempt at a run ended."""

    panel: Any
    result: Any  # or the LabError
    made_at: float  # when the fault was made; 0.0 if it wasn't


def attempt(plan: Plan, name: str, world: World, fault: faults.Fault | None = None) -> Attempt:
    """Run it once, with a fault or without."""
    log = world.home / "steps" / name
    log.parent.mkdir(exist_ok=True)
    config = {"kind": plan.kind, "log": str(log), "epochs": plan.epochs, "steps": plan.steps}
    make = runs.sweep if plan.kind == "tune" else runs.train
    panel, fit = make(name, config, world.store)
    made_at = 0.0

    def strike() -> None:
        nonlocal made_at
        if plan.kind == "tune":  # whose panel has no rank 0 to go by
            moment = plan.share * plan.epochs * runs.TRIALS
            while len(_steps_in(log)) < moment and not panel.state.over:
                time.sleep(0.005)
            fault.now()
        while fault.outcome == "armed":
            time.sleep(0.005)
        if fault.outcome == "made":
            made_at = time.time()
        fault.wait(300)

    if fault is not None:
        if plan.kind != "tune":
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
    return Attempt(panel, result, made_at)


def _begin_and_kill(plan: Plan, name: str) -> float:
    """Begin the run in a process of its own, on the same cluster, and kill that; return when it was dead."""
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
    checkpoints = runs.listed(name, world.store)
    if not checkpoints:
        return
    path = f"{checkpoints[-1].checkpoint.path}/state.json"
    files = world.store.files
    whole = files.cat_file(path)
    files.pipe_file(path, whole[: len(whole) // 2])
    result = attempt(plan, name, world).result
    files.pipe_file(path, whole)
    if not isinstance(result, LabError) or "JSONDecodeError" not in str(result):
        raise Broken(f"a run went on from half a checkpoint: {result}")


def make(plan: Plan, world: World) -> None:
    """Make a run with its fault.

    Raises:
        Broken: a promise does not hold.
    """
    name = f"{plan.seed}-{plan.number}-{os.urandom(2).hex()}"
    held = world.held()
    spare = world.spare
    texts = []  # that must not have a secret in them
    result = None
    if plan.fault == "kill kernel":
        made_at = _begin_and_kill(plan, name)
        checkpoints = runs.listed(name, world.store)
        kept = max((checkpoint.metrics["epoch"] for checkpoint in checkpoints), default=-1)
    else:
        fault = world.fault(plan)
        panel, result, made_at = attempt(plan, name, world, fault)
        if fault.outcome == "refused":
            raise Broken(f"the fault was refused: {fault.did}")
        texts.append(repr(fault))
        points = getattr(panel.state, "checkpoints", ())
        kept = max((point.epoch - 1 for point in points if point.committed_at < made_at), default=-1)
    if isinstance(result, LabError):
        texts.append(str(result))
        if plan.fault == "damage checkpoint":
            _damage(plan, name, world)
        result = None
    if result is None:
        result = attempt(plan, name, world).result
        if isinstance(result, LabError):
            raise Broken(f"the run did not go on: {result}")
    if made_at:
        _check_steps(plan, world.home / "steps" / name, kept)
    _check_model(plan, result, runs.listed(name, world.store))
    texts += [path.read_text() for path in (world.home / "runs" / name).rglob("*.json")]
    if any(secret in text for secret in world.secrets for text in texts):
        raise Broken("a secret is in the card, the error or the record of the run")
    world.heal(spare if made_at and plan.fault in ("kill node", "drain node") else None)
    _check_left(plan, world, held)


# -- what must hold --------------------------------------------------------------------------------


def _check_left(plan: Plan, world: World, held: set[str]) -> None:
    """Wait until nothing is left that wasn't `held` before."""
    killed = "kill" in plan.fault or plan.fault in ("damage checkpoint", "drain node")
    deadline = time.time() + _WITHIN
    while True:
        left = world.left(held, killed=killed)
        if not left:
            return
        if time.time() > deadline:
            raise Broken("left over: " + "; ".join(left))
        time.sleep(0.1)


class _Step(NamedTuple):
    """A line of the log."""

    key: str
    pid: int
    epoch: int
    step: int


def _steps_in(log: Path) -> list[_Step]:
    """Read all steps that were made, in their order."""
    lines = log.read_text().splitlines() if log.exists() else []
    steps = []
    for line in lines:
        key, *numbers = line.split()
        steps.append(_Step(key, *map(int, numbers)))
    return steps


def _check_steps(plan: Plan, log: Path, kept: int) -> None:
    """Check that nothing was trained again up to epoch `kept`."""
    latest: dict[str, _Step] = {}  # by key
    for step in _steps_in(log):
        before = latest.get(step.key, step)
        latest[step.key] = step
        # Of a trial, one epoch may be on its way to the store, and one in the making.
        had = before.epoch - 2 if plan.kind == "tune" else kept
        if step.pid != before.pid and step.epoch <= had:
            fact = f"went on with epoch {step.epoch}, and the checkpoint of epoch {had} was there"
            raise Broken(f"{step.key} {fact}")


def _check_model(plan: Plan, result: Any, listed: list[Any]) -> None:
    """Check that the result equals an undisturbed run's, and so do all checkpoints that Ray lists."""
    if plan.kind == "tune":
        if (len(result), result.num_errors) != (runs.TRIALS, 0):
            raise Broken(f"{len(result)} trials, {result.num_errors} of them with errors")
        for trial in result:
            _check_checkpoints(plan, [trial.checkpoint], trial.config["rate"])
        return
    checkpoints = [reported.checkpoint for reported in listed]
    epochs = _check_checkpoints(plan, [*checkpoints, result.checkpoint], runs.RATE)[:-1]
    if epochs != list(range(1, plan.epochs + 1)):
        raise Broken(f"checkpoints of the epochs {[epoch - 1 for epoch in epochs]} are listed")
    for reported in listed if plan.kind == "validation" else ():
        norm = runs.validate(reported.checkpoint)["norm"]
        if reported.status.value != "VALIDATED" or reported.metrics.get("norm") != norm:
            raise Broken(f"a validation ended as {reported.status.value} with {reported.metrics}")


def _check_checkpoints(plan: Plan, checkpoints: list[Any], rate: float) -> list[int]:
    """Compare all checkpoints with an undisturbed run, and return the epochs that come next."""
    weights = [np.zeros((runs.WIDTH, 1))]
    for epoch in range(plan.epochs):
        weights.append(runs.descend(weights[-1], epoch, plan.steps, rate))
    loaded = [runs.load(checkpoint) for checkpoint in checkpoints]
    epochs = [epoch for epoch, _ in loaded]
    off = max(float(np.abs(found - weights[epoch]).max()) for epoch, found in loaded)
    if epochs[-1] != plan.epochs or off > 1e-5:
        raise Broken(f"the last checkpoint is of epoch {epochs[-1] - 1}; weights differ by {off:.1e}")
    return epochs


# -- all of it -------------------------------------------------------------------------------------


def campaign(plans: list[Plan]) -> Iterator[tuple[Plan, str]]:
    """Make all runs; yield each with what does not hold."""
    left = list(plans)
    while left:
        with World.started() as world:
            while left:
                plan = left.pop(0)
                try:
                    make(plan, world)
                    yield plan, ""
                except Exception as error:
                    yield plan, f"{type(error).__name__}: {error}"
                    break  # what it has left must not harm the others


def report(numbers: range, seed: int) -> int:
    """Make a campaign, and print it run by run; return how many runs broke a promise."""
    broken = 0
    for plan, problem in campaign([Plan.draw(seed, number) for number in numbers]):
        broken += bool(problem)
        outcome = f"BROKEN: {problem}" if problem else "kept"
        print(f"{plan.number}: {plan.kind}, {plan.fault} at {plan.share:.0%}: {outcome}", flush=True)
    print(f"{len(numbers) - broken} of {len(numbers)} runs kept what was promised")
    return broken


if __name__ == "__main__":  # the process that is killed
    _plan = Plan.draw(int(sys.argv[1]), int(sys.argv[2]))
    with World.started() as _world:
        attempt(_plan, sys.argv[3], _world, _world.fault(_plan))
