"""Mistakes in a sweep that are found before it starts, because Tune would wait forever or mix up results."""

from collections.abc import Sequence

from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.utils import flatten_dict

from labkit.errors import LabError
from labkit.storage import check_run_name
from labkit.tune import saved
from labkit.tune.trials import TunerPlan


def check_plan(plan: TunerPlan, nodes: Sequence[dict[str, float]] | None = None) -> None:
    """Refuse a sweep that cannot work.

    Args:
        nodes: the resources of each living node; None if they are not known, or if nodes may still come.

    Raises:
        LabError: trials that fit on no node; in a new sweep an empty search space or the name of an earlier
            sweep; in a restored one a state that Tune cannot read.
    """
    _check_resources(plan, nodes)
    if plan.restored:
        _check_state(plan)
    else:
        _check_space(plan)
        _check_name(plan)


def _check_resources(plan: TunerPlan, nodes: Sequence[dict[str, float]] | None) -> None:
    bundles = plan.resources()
    if not nodes or bundles is None:
        return
    for name in ("CPU", "GPU"):
        have = [node.get(name, 0.0) for node in nodes]
        asked = [bundle.get(name, 0.0) for bundle in bundles]
        if max(asked) > max(have) + 1e-6 or sum(asked) > sum(have) + 1e-6:
            listed = f"{', '.join(f'{one:g}' for one in have)} {name}{'s' * (have != [1])}"
            raise LabError(
                f"start trials of {sum(asked):g} {name}{'s' * (sum(asked) != 1)} each",
                f"the nodes of the cluster have {listed}: no trial would ever start",
                f"tune.with_resources(…, {{{name!r}: {max(have):g}}}) or less, or a larger cluster",
            )


def _check_space(plan: TunerPlan) -> None:
    entries = flatten_dict(plan.space)
    changed = isinstance(plan.options.scheduler, PopulationBasedTraining)  # settings that are equal at first
    if plan.options.search_alg is not None or changed or any(map(_is_searched, entries, entries.values())):
        return
    attempt = f"sweep over {plan.name}"
    for name, value in entries.items():
        if isinstance(value, (list, range)) and len(value) > 1:
            fact = f"{name!r} is a plain list, which every trial would get unchanged"
            raise LabError(attempt, fact, f"tune.grid_search([…]) or tune.choice([…]) for {name!r}")
    samples = plan.options.num_samples
    if not entries or samples != 1:
        fact = "nothing in the search space is searched" if entries else "the search space is empty"
        fact += f": all {samples} trials would be the same" if samples != 1 else ": it is one plain run"
        raise LabError(attempt, fact, 'param_space={"lr": tune.loguniform(1e-3, 1)}, for example')


def _is_searched(name: str, value: object) -> bool:
    inside = value if isinstance(value, (list, tuple)) else [value]
    return name.endswith("grid_search") or any(hasattr(one, "sample") for one in inside)


def _check_name(plan: TunerPlan) -> None:
    """Refuse the name of an earlier sweep: the results of both would overwrite each other in one folder."""
    check_run_name(str(plan.run.name), only_ascii=False)
    try:
        taken = saved.states(*plan.storage)
    except OSError:
        return  # Tune reports at once that the storage can't be reached
    if taken:
        raise LabError(
            f"start a new sweep with the name {plan.run.name!r}",
            f"{plan.run.storage_path} has one of that name already, and trials of both would be mixed",
            "a fresh one: RunConfig(name=panel.run_id, …). To go on with that one: Tuner.restore(path, …)",
        )


def _check_state(plan: TunerPlan) -> None:
    """Refuse a state that is cut off, or without a trial: Tune would run one empty configuration."""
    if not saved.is_valid(*plan.storage):
        fact = f"the state in {plan.path} is missing or cut off, or lists no trial: it ended too early"
        fix = "start a new sweep under a fresh name; checkpoints of the trials are in their folders"
        raise LabError(f"go on with the sweep {plan.run.name!r}", fact, fix)
