"""Whether all ranks hold the same weights, and what to write where they should.

    note = compare({0: looks_of_rank_0, 1: looks_of_rank_1}, engine="Ray Train")

`labkit.worker.weights` takes the looks. The weights must differ in two looks that follow each other, or at
the end of the loop, because some loops average them after an epoch. What the gradients show decides about the
words:

- gradients that are equal, and weights that aren't: the ranks began with different weights, or an optimizer
  has other settings. No loop does this on purpose.
- gradients that differ: nothing averages them. A loop whose parts or whose averages explain this is left
  alone; `_is_on_purpose` has the reasons.
"""

from collections.abc import Iterable, Mapping, Sequence

from labkit.worker.events import Weights

_SAME = 1e-6  # norms that differ by a smaller share are equal: ranks may have different processors
_SAME_GRADIENTS = 1e-5
_OFTEN = 0.5  # share of the steps
_NAMED = 3
_MOST_NAMES = 120  # characters
_OFF = "If that is on purpose, LABKIT_COMPARE_WEIGHTS=0 turns this comparison off"


def compare(looks: Mapping[int, Sequence[Weights]], *, engine: str) -> str:
    """Return what to say of the weights of all ranks, "" if they agree or it isn't certain."""
    common = _in_step(looks)
    if not common or any(look.solo for look in common[-1]):
        return ""
    latest, first = common[-1], common[0]
    common = [ranks for ranks in common if ranks[0].names == latest[0].names]
    differ = _differ(latest)
    if not differ:
        return ""
    gradients = {place: _latest_gradients(common, place) for place in differ}
    trained = [place for place in differ if gradients[place]]
    unlike = [place for place in trained if _are_unlike(gradients[place], _SAME_GRADIENTS)]
    began_apart = _differ(first) if first[0].number == 0 else []
    twice = len(common) > 1 and bool(_differ(common[-2]))
    began_now = twice and common[-2][0].number == 0  # this look is before the first epoch
    if trained and not unlike:
        if not twice:
            return ""
        return _began_apart(first, began_apart, engine) if began_apart else _changed(latest, trained)
    if _is_on_purpose(latest, unlike or differ) or not (latest[0].last or (twice and not began_now)):
        return ""
    return _not_averaged(latest, unlike, engine) if unlike else _not_trained(latest, differ, engine)


# -- what the looks show -----------------------------------------------------------------------------------


def _in_step(looks: Mapping[int, Sequence[Weights]]) -> list[list[Weights]]:
    """The looks that all ranks have, of the same parameters after as many steps, each by rank."""
    by_key = [{(look.number, look.last): look for look in looks[rank]} for rank in sorted(looks)]
    if len(by_key) < 2:
        return []
    keys = [key for key in by_key[0] if all(key in of_rank for of_rank in by_key)]
    common = [[of_rank[key] for of_rank in by_key] for key in sorted(keys)]
    return [ranks for ranks in common if _are_alike(ranks)]


def _are_alike(ranks: Sequence[Weights]) -> bool:
    first, *others = ranks
    same_steps = not any(look.exchanged for look in ranks) or all(
        look.steps == first.steps for look in others
    )
    return same_steps and all(look.names == first.names for look in others)


def _differ(ranks: Sequence[Weights]) -> list[int]:
    """The places of the tensors whose weights aren't the same on all ranks, where they are finite."""
    by_tensor = enumerate(zip(*(look.weights for look in ranks), strict=True))
    return [place for place, norms in by_tensor if _are_unlike(norms, _SAME)]


def _are_unlike(norms: Sequence[float | None], share: float) -> bool:
    known = [norm for norm in norms if norm is not None]
    return len(known) == len(norms) and max(known) - min(known) > share * max(known)


def _latest_gradients(common: Sequence[Sequence[Weights]], place: int) -> list[float | None]:
    """The norms of a tensor's gradients on each rank, in the latest look that has any; empty without one."""
    for ranks in reversed(common):
        norms = [look.gradients[place] for look in ranks]
        if any(norms):
            return norms
    return []


def _is_on_purpose(ranks: Sequence[Weights], differ: Sequence[int]) -> bool:
    """Whether the loop may be one whose ranks hold different weights, and is right."""
    several_parts = any(
        not look.is_whole or (look.crossed >= _OFTEN and not look.syncs_buffers) for look in ranks
    )
    averaged_at_times = any(look.rewritten for look in ranks)
    # Each rank steps its part of the weights, and the parts are gathered after the step.
    stepped_in_parts = any(look.exchanged and look.gathered >= _OFTEN for look in ranks)
    # Two groups of ranks may train a model each.
    in_groups = not any(_all_different(look.weights[place] for look in ranks) for place in differ)
    return several_parts or averaged_at_times or stepped_in_parts or in_groups


def _all_different(norms: Iterable[float | None]) -> bool:
    ordered = sorted(norm for norm in norms if norm is not None)
    return all(after - before > _SAME * after for before, after in zip(ordered, ordered[1:], strict=False))


# -- what to say -------------------------------------------------------------------------------------------


def _wrapping(engine: str) -> str:
    if engine == "Ray Train":
        return "ray.train.torch.prepare_model(model)"
    return "torch.nn.parallel.DistributedDataParallel(model)"


def _begin(ranks: Sequence[Weights]) -> str:
    return f"the {len(ranks)} workers hold different weights"


def _began_apart(ranks: Sequence[Weights], differ: list[int], engine: str) -> str:
    return (
        f"{_begin(ranks)}, although they average their gradients: {_names(ranks[0], differ)} differed before "
        "the first step. Call torch.manual_seed(0) before the model is made, and load weights on all ranks, "
        f"or before model = {_wrapping(engine)}, which copies those of rank 0. {_OFF}"
    )


def _changed(ranks: Sequence[Weights], differ: list[int]) -> str:
    return (
        f"{_begin(ranks)}, although they average their gradients: {_names(ranks[0], differ)} were the same "
        "before the first step. Give the optimizers of all ranks the same settings, such as the learning "
        f"rate, and change weights in the loop on all ranks. {_OFF}"
    )


def _not_averaged(ranks: Sequence[Weights], unlike: list[int], engine: str) -> str:
    look = ranks[0]
    has_wrapper = any(look.averaged)
    none_exchanged = not any(look.exchanged for look in ranks)
    of_wrapper = [place for place in unlike if look.averaged[place]]
    missed = [place for place in unlike if not look.averaged[place]]
    if none_exchanged:
        why = "no gradients are exchanged, so each worker trains a model of its own"
    else:
        why = f"the gradients of {_names(look, missed or of_wrapper)} aren't averaged"
    if has_wrapper and of_wrapper:
        fix = (
            "DistributedDataParallel averages gradients if the loop calls the wrapper, model(x) instead of "
            "model.module(x), and if the last backward() before each step is outside of no_sync()"
        )
    elif has_wrapper:
        fix = (
            "What is added to a model or gets requires_grad=True after the model was wrapped is left out: do "
            f"that before model = {_wrapping(engine)}, and wrap each model that is trained"
        )
    elif none_exchanged:
        fix = f"Wrap the model before the optimizer is made: model = {_wrapping(engine)}"
    else:
        fix = f"Average those of all parameters, or wrap the model: model = {_wrapping(engine)}"
    return f"{_begin(ranks)}: {why}. {fix}. {_OFF}"


def _not_trained(ranks: Sequence[Weights], differ: list[int], engine: str) -> str:
    return (
        f"{_begin(ranks)}: {_names(ranks[0], differ)} differ and aren't trained. Make and load them before "
        f"model = {_wrapping(engine)}, which copies those of rank 0. {_OFF}"
    )


def _names(look: Weights, places: Sequence[int]) -> str:
    """``head.weight, head.bias and 3 more``; all of a model have no names."""
    if len(places) == len(look.names) > 1:
        return f"all {len(places)} parameters"
    names = list(dict.fromkeys(look.names[place] for place in places))
    shown = names[:_NAMED]
    if len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    text = " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
    return text if len(text) <= _MOST_NAMES else f"{len(names)} parameters"
