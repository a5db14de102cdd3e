"""Mistakes in a sweep that are found before it starts. Otherwise every trial would fail, or wait forever."""

import ast
import contextlib
import difflib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import pyarrow.fs
from ray.tune import Trainable

from labkit.errors import RunError
from labkit.tune import saved
from labkit.tune.trials import STATE_FILES, TunerPlan, is_sampled

_SIMILAR = 0.75  # from 0 to 1: above it one name is taken for a misspelling of the other
_CALL_DEPTH = 4  # functions that call functions, searched for names


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


# -- the search space -------------------------------------------------------------------------------


def _check_space(plan: TunerPlan) -> None:
    attempt, samples, entries = (
        f"sweep over {plan.name}",
        plan.options.num_samples,
        list(_entries(plan.space)),
    )
    for name, value in entries:
        if isinstance(value, dict) and len(value) == 1 and not _is_grid(value):
            (key,) = value
            if difflib.get_close_matches(str(key), ["grid_search"], cutoff=_SIMILAR):
                fact = f"{name!r} is {{{key!r}: …}}, which every trial would get unchanged"
                raise RunError(attempt, fact, f"tune.grid_search([…]) for {name!r}")
        choices = value["grid_search"] if _is_grid(value) else getattr(value, "categories", None)
        if choices is not None and not len(choices):
            fix = f"give {name!r} one or more values"
            raise RunError(attempt, f"{name!r} has no value to choose from", fix)
    if plan.options.search_alg is not None or any(is_sampled(v) or _is_grid(v) for _, v in entries):
        return
    for name, value in entries:
        if isinstance(value, (list, range)) and len(value) > 1:
            fact = f"{name!r} is a plain list, which every trial would get unchanged"
            raise RunError(attempt, fact, f"tune.grid_search([…]) or tune.choice([…]) for {name!r}")
    if not plan.space or samples != 1:
        fact = "nothing in the search space is searched" if plan.space else "the search space is empty"
        fact += f": all {samples} trials would be the same" if samples != 1 else ": it is one plain run"
        raise RunError(attempt, fact, 'param_space={"lr": tune.loguniform(1e-3, 1)}, for example')


def _entries(space: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of all entries, nested ones too."""
    for key, value in space.items():
        yield f"{before}{key}", value
        if isinstance(value, dict) and not _is_grid(value):
            yield from _entries(value, f"{before}{key}/")


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"grid_search"}


# -- the names of its parameters --------------------------------------------------------------------


def _check_parameters(plan: TunerPlan) -> None:
    """Refuse a parameter that the trainable never mentions, if it reads another one that it does not get."""
    try:
        mentioned, read = _names_in(plan.trainable)
    except (OSError, TypeError, SyntaxError):  # no source: typed at a prompt, or made by `exec`
        return
    missing = sorted(read - plan.space.keys())
    for key in sorted(plan.space.keys() - mentioned):
        near = difflib.get_close_matches(key, [*missing, *sorted(mentioned)], n=1, cutoff=_SIMILAR)
        if wanted := next(iter([*near, *missing]), None):
            fact = f"{plan.name} reads {wanted!r} from its configuration, and nothing there reads {key!r}"
            raise RunError(f"sweep over {key!r}", fact, f"rename it: param_space={{{wanted!r}: …}}")


def _names_in(trainable: Any) -> tuple[set[str], set[str]]:
    """Return (texts and variables, keys of ``config["key"]``) in the source of a trainable and what it calls.

    A parameter that is neither a text nor a variable, as in ``model(**config)``, is not read anywhere.
    """
    found = [trainable]
    if isinstance(trainable, type):
        found = [
            one for base in trainable.__mro__ if base not in Trainable.__mro__ for one in vars(base).values()
        ]
    seen: set[FunctionType] = set()
    mentioned: set[str] = set()
    read: set[str] = set()
    for tree in [tree for one in found for tree in _trees(getattr(one, "__func__", one), seen, _CALL_DEPTH)]:
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(name)) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    mentioned.add(name)
                case ast.Subscript(
                    value=ast.Name(id="config") | ast.Attribute(attr="config"),
                    slice=ast.Constant(value=str(key)),
                    ctx=ast.Load(),
                ):
                    read.add(key)
    return mentioned, read


def _trees(function: Any, seen: set[FunctionType], depth: int) -> Iterator[ast.AST]:
    """Yield the syntax tree of a function, and of the functions of its module that it calls by name."""
    if not isinstance(function, FunctionType) or function in seen or depth == 0:
        return
    seen.add(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    yield tree
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for called in [function.__globals__.get(name) for name in names]:
        if getattr(called, "__module__", None) == function.__module__:
            yield from _trees(called, seen, depth - 1)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it has no value yet
            yield from _trees(cell.cell_contents, seen, depth - 1)


# -- the rest ---------------------------------------------------------------------------------------


def _check_resources(plan: TunerPlan, nodes: Sequence[dict[str, float]] | None) -> None:
    bundles = plan.resources()
    if not nodes or bundles is None:
        return
    for name in ("CPU", "GPU"):
        have = [node.get(name, 0.0) for node in nodes]
        asked = [bundle.get(name, 0.0) for bundle in bundles]
        if max(asked) > max(have) + 1e-6 or sum(asked) > sum(have) + 1e-6:
            listed = ", ".join(f"{one:g}" for one in have)
            raise RunError(
                f"start trials of {sum(asked):g} {name} each",
                f"the nodes of the cluster have {listed} {name}: no trial would ever start",
                f"tune.with_resources(…, {{{name!r}: {max(have):g}}}) or less, or a larger cluster",
            )


def _check_reuse(plan: TunerPlan) -> None:
    own = getattr(plan.trainable, "reset_config", None)  # a function has none, and needs none
    if plan.options.reuse_actors and own is Trainable.reset_config:
        raise RunError(
            f"reuse the actors of {plan.name}",
            "it has no reset_config, so a process that has trained one configuration cannot take another: "
            "every trial but the first of each process would fail",
            "write reset_config(self, config), which starts over and returns True; or reuse_actors=False",
        )


def _check_name(plan: TunerPlan) -> None:
    """Refuse the name of an earlier sweep: the results of both would overwrite each other in one folder."""
    filesystem, path = plan.storage
    try:
        found = filesystem.get_file_info(pyarrow.fs.FileSelector(path, allow_not_found=True))
    except OSError:
        return  # Tune says it better, and at once
    if any(info.base_name.startswith(STATE_FILES) for info in found):
        raise RunError(
            f"start a new sweep with the name {plan.run.name!r}",
            f"{plan.run.storage_path} has one of that name already, and trials of both would be mixed",
            "a fresh one: RunConfig(name=panel.run_id, …). To go on with that one: Tuner.restore(path, …)",
        )


def _check_state(plan: TunerPlan) -> None:
    """Refuse a state that a kill has cut off: Tune would start over, with one empty configuration."""
    if not saved.is_valid(*plan.storage):
        fact = f"the state in {plan.path} is missing or cut off: the sweep was killed while it was written"
        fix = "start a new sweep under a fresh name; checkpoints of the trials are in their folders"
        raise RunError(f"go on with the sweep {plan.run.name!r}", fact, fix)
