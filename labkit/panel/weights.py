"""Compare the weights of all ranks, and explain why they differ where they should be the same.

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
from itertools import pairwise

from labkit.worker.events import Weights

_SAME = 1e-6  # norms that differ by a smaller share are equal: ranks may have different processors
_SAME_GRADIENTS = 1e-5
_OFTEN = 0.5  # share of the steps
_NAMED = 3
_MOST_NAMES = 120  # characters
_OFF = "If that is on purpose, LABKIT_COMPARE_WEIGHTS=0 turns this comparison off"


def compare(looks: Mapping[int, Sequence[Weights]], *, engine: str) -> str:
    """Return a sentence about the weights of all ranks; "" if they agree or it isn't certain."""
    common = _in_step(looks)
    if not common or any(look.solo for look in common[-1]):
        return ""
    first = common[0]
    latest = common[-1]
    common = [ranks for ranks in common if ranks[0].names == latest[0].names]
    differ = _differ(latest)
    if not differ:
        return ""
    trained = []
    unlike = []
    for place in differ:
        gradients = _latest_gradients(common, place)
        if gradients:
            trained.append(place)
            if _are_unlike(gradients, _SAME_GRADIENTS):
                unlike.append(place)
    twice = len(common) > 1 and bool(_differ(common[-2]))
    if trained and not unlike:
        if not twice:
            return ""
        began_apart = _differ(first) if first[0].number == 0 else []
        if began_apart:
            return _began_apart(first, began_apart, engine)
        return _changed(latest, trained)
    began_now = twice and common[-2][0].number == 0  # that look is before the first epoch
    is_certain = latest[0].last or (twice and not began_now)
    if not is_certain or _is_on_purpose(latest, unlike or differ):
        return ""
    if unlike:
        return _not_averaged(latest, unlike, engine)
    return _not_trained(latest, differ, engine)


# -- what the looks show -----------------------------------------------------------------------------------


def _in_step(looks: Mapping[int, Sequence[Weights]]) -> list[list[Weights]]:
    """Return the looks that all ranks have, of the same parameters after as many steps, each by rank."""
    if len(looks) < 2:
        return []
    by_rank = []
    for rank in sorted(looks):
        by_rank.append({(look.number, look.last): look for look in looks[rank]})
    moments = set(by_rank[0]).intersection(*by_rank)
    common = [[of_rank[moment] for of_rank in by_rank] for moment in sorted(moments)]
    return [ranks for ranks in common if _are_alike(ranks)]


def _are_alike(ranks: Sequence[Weights]) -> bool:
    """Return whether looks of all ranks can be compared."""
    first = ranks[0]
    if any(look.names != first.names for look in ranks):
        return False
    exchange = any(look.exchanged for look in ranks)
    return not exchange or all(look.steps == first.steps for look in ranks)


def _differ(ranks: Sequence[Weights]) -> list[int]:
    """Return the places of the tensors whose weights aren't the same on all ranks, where they are finite."""
    by_tensor = zip(*(look.weights for look in ranks), strict=True)
    return [place for place, norms in enumerate(by_tensor) if _are_unlike(norms, _SAME)]


def _are_unlike(norms: Sequence[float | None], share: float) -> bool:
    finite = [norm for norm in norms if norm is not None]
    if len(finite) < len(norms):
        return False
    return max(finite) - min(finite) > share * max(finite)


def _latest_gradients(common: Sequence[Sequence[Weights]], place: int) -> list[float | None]:
    """Return the norms of a tensor's gradients by rank, from the latest look that has any; else nothing."""
    for ranks in reversed(common):
        norms = [look.gradients[place] for look in ranks]
        if any(norms):
            return norms
    return []


def _is_on_purpose(ranks: Sequence[Weights], differ: Sequence[int]) -> bool:
    """Return whether the loop may hold different weights on each rank, and be right."""
    for look in ranks:
        has_several_parts = look.crossed >= _OFTEN and not look.syncs_buffers
        # Each rank steps its part of the weights, and the parts are gathered after the step.
        is_stepped_in_parts = look.exchanged and look.gathered >= _OFTEN
        is_averaged_at_times = look.rewritten
        if not look.is_whole or has_several_parts or is_stepped_in_parts or is_averaged_at_times:
            return True
    # Two groups of ranks may train a model each.
    return not any(_all_different(look.weights[place] for look in ranks) for place in differ)


def _all_different(norms: Iterable[float | None]) -> bool:
    ordered = sorted(norm for norm in norms if norm is not None)
    return all(after - before > _SAME * after for before, after in pairwise(ordered))


# -- the sentences -----------------------------------------------------------------------------------------


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
    of_wrapper = [place for place in unlike if look.averaged[place]]
    missed = [place for place in unlike if not look.averaged[place]]
    none_exchanged = not any(look.exchanged for look in ranks)
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
    """Return ``head.weight, head.bias and 3 more``; all parameters of a model have no names."""
    if len(places) == len(look.names) > 1:
        return f"all {len(places)} parameters"
    names = list(dict.fromkeys(look.names[place] for place in places))
    shown = names[:_NAMED]
    if len(names) > _NAMED:
        shown.append(f"{len(names) - _NAMED} more")
    text = shown.pop()
    if shown:
        text = f"{', '.join(shown)} and {text}"
    if len(text) > _MOST_NAMES:
        return f"{len(names)} parameters"
    return text
