"""Mistakes in a sweep that are found before it starts. Otherwise every trial would fail, or wait forever."""

import contextlib
import difflib
import inspect
import re
from collections.abc import Sequence
from typing import Any

from ray.tune import Trainable

from labkit.errors import RunError
from labkit.runs.browse import flat
from labkit.storage import check_run_name
from labkit.tune import saved
from labkit.tune.trials import TunerPlan

_SIMILAR = 0.75  # from 0 to 1: above it one name is taken for a misspelling of the other


def check_plan(plan: TunerPlan, nodes: Sequence[dict[str, float]] | None = None) -> None:
    """Refuse a sweep that cannot work.

    Args:
        nodes: the resources of each living node; None if they are not known.

    Raises:
        RunError: trials that fit on no node, actors that cannot be reused, a state that cannot be restored.
            In a new sweep also: an empty search space, a misspelt parameter, an earlier sweep's name.
    """
    _check_resources(plan, nodes)
    _check_reuse(plan)
    if plan.restored:
        _check_state(plan)
        return
    if isinstance(plan.space, dict):
        _check_space(plan)
        _check_parameters(plan)
    _check_name(plan)


def _check_space(plan: TunerPlan) -> None:
    attempt, samples = f"sweep over {plan.name}", plan.options.num_samples
    entries = flat(plan.space, separator="/")
    is_searched = any(
        name.endswith("/grid_search") or hasattr(value, "sample") for name, value in entries.items()
    )
    if is_searched or plan.options.search_alg is not None:
        return
    for name, value in entries.items():
        if isinstance(value, (list, range)) and len(value) > 1:
            fact = f"{name!r} is a plain list, which every trial would get unchanged"
            raise RunError(attempt, fact, f"tune.grid_search([…]) or tune.choice([…]) for {name!r}")
    if not plan.space or samples != 1:
        fact = "nothing in the search space is searched" if plan.space else "the search space is empty"
        fact += f": all {samples} trials would be the same" if samples != 1 else ": it is one plain run"
        raise RunError(attempt, fact, 'param_space={"lr": tune.loguniform(1e-3, 1)}, for example')


def _check_parameters(plan: TunerPlan) -> None:
    source = _source(plan.trainable)
    required, optional = (
        {*re.findall(rf"\bconfig{read}[\"'](\w+)[\"']", source)} - plan.space.keys()
        for read in (r"\[", r"\.get\(")
    )
    for name in sorted(plan.space):
        if not re.search(rf"[\"']{re.escape(name)}[\"']", source):
            near = difflib.get_close_matches(name, required | optional, n=1, cutoff=_SIMILAR)
            if wanted := next(iter([*near, *sorted(required)]), None):
                fact = (
                    f"{plan.name} reads {wanted!r} from its configuration, and nothing there reads {name!r}"
                )
                raise RunError(f"sweep over {name!r}", fact, f"rename it: param_space={{{wanted!r}: …}}")


def _source(trainable: Any) -> str:
    """The source of a trainable, of its base classes and of what `tune.with_parameters` has wrapped."""
    functions = [trainable]
    if isinstance(trainable, type):
        own = [base for base in trainable.__mro__ if base not in Trainable.__mro__]
        functions = [function for base in own for function in vars(base).values()]
    for function in list(functions):
        with contextlib.suppress(TypeError):  # no function
            functions += inspect.getclosurevars(function).nonlocals.values()
    texts = []
    for function in functions:
        with contextlib.suppress(OSError, TypeError):  # no function, or one that was typed at a prompt
            texts.append(inspect.getsource(function))
    return "\n".join(texts)


def _check_resources(plan: TunerPlan, nodes: Sequence[dict[str, float]] | None) -> None:
    bundles = plan.resources()
    if not nodes or bundles is None:
        return
    for name in ("CPU", "GPU"):
        have = [node.get(name, 0.0) for node in nodes]
        asked = [bundle.get(name, 0.0) for bundle in bundles]
        if max(asked) > max(have) + 1e-6 or sum(asked) > sum(have) + 1e-6:
            listed = f"{', '.join(f'{one:g}' for one in have)} {name}{'s' * (have != [1])}"
            raise RunError(
                f"start trials of {sum(asked):g} {name}{'s' * (sum(asked) != 1)} each",
                f"the nodes of the cluster have {listed}: no trial would ever start",
                f"tune.with_resources(…, {{{name!r}: {max(have):g}}}) or less, or a larger cluster",
            )


def _check_reuse(plan: TunerPlan) -> None:
    own = getattr(plan.trainable, "reset_config", None)  # a function has none, and needs none
    if not plan.options.reuse_actors or own is None:
        return
    source, fact = _source(own), ""
    if own is Trainable.reset_config:
        fact = "it has no reset_config, so a process that has trained one configuration cannot take another"
    elif source and "return" not in source:
        fact = "its reset_config returns None, which Tune takes for a failure"
    if fact:
        fact += ": every trial but the first of each process would fail"
        fix = "write reset_config(self, config), which starts over and returns True; or reuse_actors=False"
        raise RunError(f"reuse the actors of {plan.name}", fact, fix)


def _check_name(plan: TunerPlan) -> None:
    """Refuse the name of an earlier sweep: the results of both would overwrite each other in one folder."""
    check_run_name(str(plan.run.name), only_ascii=False)
    try:
        taken = saved.states(*plan.storage)
    except OSError:
        return  # Tune says it better, and at once
    if taken:
        raise RunError(
            f"start a new sweep with the name {plan.run.name!r}",
            f"{plan.run.storage_path} has one of that name already, and trials of both would be mixed",
            "a fresh one: RunConfig(name=panel.run_id, …). To go on with that one: Tuner.restore(path, …)",
        )


def _check_state(plan: TunerPlan) -> None:
    """Refuse a state that is cut off, or without a trial: Tune would run one empty configuration."""
    if not saved.is_valid(*plan.storage):
        fact = f"the state in {plan.path} is missing or cut off, or lists no trial: it ended too early"
        fix = "start a new sweep under a fresh name; checkpoints of the trials are in their folders"
        raise RunError(f"go on with the sweep {plan.run.name!r}", fact, fix)
