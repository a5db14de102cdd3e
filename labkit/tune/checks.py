"""What cannot work in a sweep, said before it starts: Tune itself would fail in each trial, or wait for ever.

`read` looks into a `ray.tune.Tuner`, which shows nothing of what it was given; `refuse` raises.
"""

import difflib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs
from ray.tune import Trainable, Tuner
from ray.tune.experiment import Trial
from ray.tune.search.sample import Categorical, Domain

from labkit.errors import RunError
from labkit.tune import names as sweep_names
from labkit.tune import snapshot as sweep_snapshot

_NEAR = 0.75  # how alike two names are, 0 to 1, where one is taken for a slip of the other


@dataclass
class Plan:
    """What a Tuner was given.

    Attributes:
        trainable: class or function.
        space: the search space; {} where there is none.
        options: its `TuneConfig`.
        run: its `RunConfig`.
        restored: whether it goes on with an interrupted sweep.
    """

    trainable: Any
    space: dict[str, Any]
    options: Any
    run: Any
    restored: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = getattr(self.trainable, "__name__", str(self.trainable))

    def resources(self) -> list[dict[str, float]]:
        """What one trial asks for: its bundles, each to be placed on one node."""
        wanted = getattr(self.trainable, "_resources", None)
        if isinstance(self.trainable, type):
            wanted = self.trainable.default_resource_request(dict(self.space))
        elif callable(wanted):
            wanted = wanted if hasattr(wanted, "bundles") else wanted(dict(self.space))
        return [dict(bundle) for bundle in wanted.bundles] if wanted is not None else [{"CPU": 1.0}]

    def path(self) -> str:
        """The folder of the sweep."""
        return f"{str(self.run.storage_path).rstrip('/')}/{self.run.name}"

    def place(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """The file system with that folder, and the folder's path there."""
        filesystem, path = self.run.storage_filesystem, self.path()
        if filesystem is not None:
            return filesystem, path
        if "://" in path:
            return pyarrow.fs.FileSystem.from_uri(path)
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path))


def read(tuner: Any) -> Plan | None:
    """Return what `tuner` was given; None if this version of Ray keeps it elsewhere.

    A Tuner has no public attributes, so this is the one place that reads private ones.

    Raises:
        RunError: it is no Tuner, or it runs behind a Ray client, in a process of the cluster.
    """
    if not isinstance(tuner, Tuner):
        given = tuner.__name__ if isinstance(tuner, type) else type(tuner).__name__
        fact = f"watch() takes a ray.tune.Tuner and got {'None' if tuner is None else given}"
        fix = "panel.watch(tune.Tuner(trainable, param_space=…)); for a trainer of its own: TrainPanel"
        raise RunError("follow the sweep", fact, fix)
    if getattr(tuner, "_remote_tuner", None) is not None:
        fact = "it goes through a Ray client (ray://…), so its loop runs where this panel cannot hear it"
        raise RunError("follow the sweep", fact, "connect directly: RAY_ADDRESS=HOST:6379")
    try:
        inner = tuner._local_tuner
        return Plan(
            trainable=inner.trainable,
            space=inner.param_space or {},
            options=inner._tune_config,
            run=inner._run_config,
            restored=inner._is_restored,
        )
    except AttributeError:
        return None


def refuse(plan: Plan, nodes: list[dict[str, float]] | None = None) -> None:
    """Refuse a sweep that cannot work.

    Args:
        nodes: the resources of each living node; None where nobody knows.

    Raises:
        RunError: a search space that is empty or misspelt, an actor that cannot be reused, a name that is
            taken, a scheduler without a metric, or trials that fit on no node.
    """
    _refuse_resources(plan, nodes)
    _refuse_reuse(plan)
    if plan.restored:
        _refuse_damaged(plan)
    else:
        _refuse_space(plan)
        _refuse_names(plan)
        _refuse_scheduler(plan)
        _refuse_taken(plan)


def rungs(options: Any) -> list[int]:
    """The iterations at which the scheduler of a `TuneConfig` compares trials, ascending."""
    brackets = getattr(options.scheduler, "_brackets", None) or []
    found = {math.ceil(rung[0]) for bracket in brackets for rung in getattr(bracket, "_rungs", [])}
    return sorted(found)


# -- the space --------------------------------------------------------------------------------------


def _refuse_space(plan: Plan) -> None:
    if not isinstance(plan.space, dict):
        return
    attempt, several = f"sweep over {plan.name}", plan.options.num_samples != 1
    for name, value in _entries(plan.space):
        if isinstance(value, dict) and len(value) == 1:
            (key,) = value
            if key != "grid_search" and difflib.get_close_matches(str(key), ["grid_search"], cutoff=_NEAR):
                fact = f"{name!r} is {{{key!r}: …}}, which Tune hands to every trial as it is"
                raise RunError(attempt, fact, f"tune.grid_search([…]) for {name!r}")
        if _is_empty(value):
            raise RunError(
                attempt, f"{name!r} has no value to choose from", f"give {name!r} one or more values"
            )
    searched = any(isinstance(v, Domain) or _is_grid(v) for _, v in _entries(plan.space))
    if searched or plan.options.search_alg is not None:
        return
    lists = [name for name, v in _entries(plan.space) if isinstance(v, (list, range)) and len(v) > 1]
    if lists:
        fact = f"{lists[0]!r} is a plain list, which Tune hands to every trial as it is"
        raise RunError(attempt, fact, f"tune.grid_search([…]) or tune.choice([…]) for {lists[0]!r}")
    if not plan.space or several:
        fact = (
            "the search space is empty" if not plan.space else "nothing in the search space is to be searched"
        )
        trials = (
            f"all {plan.options.num_samples} trials would be the same" if several else "it is one plain run"
        )
        raise RunError(
            attempt, f"{fact}: {trials}", 'param_space={"lr": tune.loguniform(1e-3, 1)}, for example'
        )


def _entries(space: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of all entries, inner ones too."""
    for key, value in space.items():
        yield f"{before}{key}", value
        if isinstance(value, dict) and not _is_grid(value):
            yield from _entries(value, f"{before}{key}/")


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"grid_search"}


def _is_empty(value: Any) -> bool:
    if _is_grid(value):
        return not len(value["grid_search"])
    return isinstance(value, Categorical) and not len(value.categories)


# -- the names in it --------------------------------------------------------------------------------


def _refuse_names(plan: Plan) -> None:
    """A parameter that the trainable never mentions, beside one that it reads and does not get: a slip."""
    found = sweep_names.of(plan.trainable)
    if found is None:
        return
    texts, variables, read = found
    missing = read - plan.space.keys()
    for key in sorted(plan.space.keys() - texts - variables):
        near = difflib.get_close_matches(key, [*missing, *sorted(texts)], n=1, cutoff=_NEAR)
        if missing or near:
            wanted = next(iter(near), None) or sorted(missing)[0]
            fact = f"{plan.name} reads {wanted!r} from its configuration, and nothing there reads {key!r}"
            raise RunError(f"sweep over {key!r}", fact, f"rename it: param_space={{{wanted!r}: …}}")


# -- the rest ---------------------------------------------------------------------------------------


def _refuse_reuse(plan: Plan) -> None:
    own = getattr(plan.trainable, "reset_config", None)  # a function has none, and needs none
    if plan.options.reuse_actors and own is Trainable.reset_config:
        raise RunError(
            f"reuse the actors of {plan.name}",
            "it has no reset_config, so a process that has trained one configuration cannot take another: "
            "every trial but the first of each process would fail",
            "write reset_config(self, config), which begins anew and returns True; or reuse_actors=False",
        )


def _refuse_scheduler(plan: Plan) -> None:
    scheduler = plan.options.scheduler
    if getattr(scheduler, "_metric", 0) is None and plan.options.metric is None:
        raise RunError(
            f"compare trials with {type(scheduler).__name__}",
            "neither it nor the TuneConfig names a metric",
            'TuneConfig(metric="accuracy", mode="max", …)',
        )


def _refuse_taken(plan: Plan) -> None:
    """A name that a sweep had already: the results of both would lie in one folder, one over the other."""
    filesystem, path = plan.place()
    selector = pyarrow.fs.FileSelector(path, allow_not_found=True)
    try:
        names = [info.base_name for info in filesystem.get_file_info(selector)]
    except OSError:
        return  # Tune says it better, and at once
    if any(name.startswith(sweep_snapshot.STATE_FILES) for name in names):
        raise RunError(
            f"start a new sweep with the name {plan.run.name!r}",
            f"one of that name lies in {plan.run.storage_path} already, and trials of both would be mixed",
            "a fresh one: RunConfig(name=panel.run_id, …). To go on with that one: Tuner.restore(path, …)",
        )


def _refuse_damaged(plan: Plan) -> None:
    """A kill may hit the writing of the state; Tune would then begin anew, with one empty configuration."""
    if not sweep_snapshot.is_whole(*plan.place()):
        fact = f"the state in {plan.path()} is missing or damaged: it was cut off in mid-writing"
        fix = "start it anew under a fresh name; checkpoints of its trials are in their folders"
        raise RunError(f"go on with the sweep {plan.run.name!r}", fact, fix)


def _refuse_resources(plan: Plan, nodes: list[dict[str, float]] | None) -> None:
    if not nodes:
        return
    try:
        bundles = plan.resources()
    except Exception:  # a request that hangs on the drawn configuration is not known before it is drawn
        return
    for name in ("CPU", "GPU"):
        most = max(node.get(name, 0.0) for node in nodes)
        whole = sum(node.get(name, 0.0) for node in nodes)
        asked = [bundle.get(name, 0.0) for bundle in bundles]
        if max(asked) > most + 1e-6 or sum(asked) > whole + 1e-6:
            has = ", ".join(f"{node.get(name, 0.0):g}" for node in nodes)
            raise RunError(
                f"start trials of {sum(asked):g} {name} each",
                f"the nodes of the cluster have {has} {name}: no trial would ever start, and Tune would wait",
                f"tune.with_resources(…, {{{name!r}: {min(most, whole):g}}}) or less, or a larger cluster",
            )


def never(trial: Trial, result: dict[str, Any]) -> str | None:
    """A stop criterion that the trial does not report, so that it would never stop; None if all are there."""
    if not trial.stopping_criterion:
        return None
    from ray.tune.utils.util import flatten_dict

    known = flatten_dict(result)
    return next((name for name in trial.stopping_criterion if name not in known), None)
