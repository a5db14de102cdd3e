"""Mistakes in a sweep that are found before it starts, because Tune would wait forever or mix up results."""

from collections.abc import Sequence

from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.utils import flatten_dict

from labkit.errors import LabError
from labkit.storage import check_run_name
from labkit.tune import saved
from labkit.tune.trials import TunerPlan


def check_plan(plan: TunerPlan, nodes: Sequence[dict[str, float]] = ()) -> None:
    """Refuse a sweep that cannot work.

    Args:
        nodes: the resources of each living node; none if they are not known, or if nodes may still come.

    Raises:
        LabError: trials that fit on no node; in a new sweep an empty search space or the name of an earlier
            sweep.
    """
    _check_resources(plan.resources(), nodes)
    if not plan.restored:
        _check_space(plan)
        _check_name(plan)


def _check_resources(bundles: list[dict[str, float]], nodes: Sequence[dict[str, float]]) -> None:
    for name in ("CPU", "GPU") if nodes and bundles else ():
        have = [node.get(name, 0.0) for node in nodes]
        asked = [bundle.get(name, 0.0) for bundle in bundles]
        if max(asked) > max(have) + 1e-6 or sum(asked) > sum(have) + 1e-6:
            raise LabError(
                f"start trials of {sum(asked):g} {name} each",
                f"the cluster's nodes have {' and '.join(f'{one:g}' for one in have)} {name}: "
                "no trial would ever start",
                f"tune.with_resources(…, {{{name!r}: {max(have):g}}}) or less, or a larger cluster",
            )


def _check_space(plan: TunerPlan) -> None:
    space, samples = flatten_dict(plan.space), plan.options.num_samples
    changed = isinstance(plan.options.scheduler, PopulationBasedTraining)  # settings that are equal at first
    if plan.options.search_alg is not None or changed or any(map(_is_searched, space, space.values())):
        return
    fact, fix = "", 'param_space={"lr": tune.loguniform(1e-3, 1)}, for example'
    if lists := [
        name for name, value in space.items() if isinstance(value, (list, range)) and len(value) > 1
    ]:
        fact = f"{lists[0]!r} is a plain list, which every trial would get unchanged"
        fix = f"tune.grid_search([…]) or tune.choice([…]) for {lists[0]!r}"
    elif samples != 1:
        fact = f"nothing is searched: all {samples} trials would be the same"
    elif not space:
        fact = "the search space is empty: it is one plain run"
    if fact:
        raise LabError(f"sweep with {getattr(plan.trainable, '__name__', plan.trainable)}", fact, fix)


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
