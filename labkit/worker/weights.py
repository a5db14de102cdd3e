"""Look at this rank's weights once an epoch, so that the panel can compare those of all ranks.

Ranks that train one model hold the same weights after each step, bit by bit. A look is the norm of each
parameter and of its gradient. It is taken when the loop reports an epoch that is over, else before the first
step of the next epoch, when all that a loop does between two epochs has happened. It is sent with the first
step of the next epoch, or at the end of the loop: the loop's variables are gone then, so nothing new is seen.

Weights that differ are right in some loops: a model in parts, each on one rank (tensor, expert and pipeline
parallelism), an optimizer's state in parts, weights that are averaged from time to time, a parameter server.
The watch notes what tells these apart, from the count of collectives in each part of a step, and from one
small parameter that it compares around each step. `labkit.panel.weights` has the verdict.

Sharded parameters (FSDP, DeepSpeed) and those on `meta` end the watch.
"""

import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any

from labkit.worker.alone import collectives
from labkit.worker.events import Weights

VARIABLE = "LABKIT_COMPARE_WEIGHTS"
_OFF = ("0", "false", "no", "off")
_EACH_EPOCH = 16  # looks up to this one; then one in so many epochs
_COUNTED = 200  # steps whose collectives are counted
_CHOSEN_WITHIN = 3  # steps
_SHARDED = ("DTensor", "FlatParameter", "ShardedTensor")
_SHARDED_MARKS = ("_fsdp_flattened", "ds_id")  # attributes that FSDP and DeepSpeed set


class WeightsWatch:
    """The looks at the weights of one loop; its methods are called in the thread of that loop."""

    def __init__(self) -> None:
        self.is_on = os.environ.get(VARIABLE, "").strip().lower() not in _OFF
        self._looks = 0
        self._latest: Weights | None = None  # a look that was not sent yet
        self._optimizers: dict[int, weakref.ref] = {}
        # Models inside of a wrapper, each with the ids of the parameters that are averaged.
        self._wrapped: list[tuple[weakref.ref, set[int]]] = []
        self._syncs_buffers = False  # whether a wrapper sends buffers in each forward pass
        self._probe: Any = None  # a small parameter, and a copy of it as the latest step left it
        self._kept: Any = None
        self._version = -1
        self._mark = collectives()
        self._steps = self._backwards = 0  # those whose collectives were counted
        # Backwards and steps with a collective in the forward pass, for the gradients, and after the step.
        self._crossed = self._exchanged = self._gathered = 0
        self._exchanges = self._has_stepped = False
        self._is_whole = True  # whether each backward began at one number
        self._rewritten = False  # whether weights have changed between two steps

    # -- what the loop does --------------------------------------------------------------------------

    def wraps(self, wrapper: Any) -> None:
        """`DistributedDataParallel` has wrapped a model."""
        averaged = {id(part) for part in wrapper.module.parameters() if part.requires_grad}
        self._wrapped.append((weakref.ref(wrapper.module), averaged))
        self._syncs_buffers = self._syncs_buffers or wrapper.will_sync_module_buffers()

    def drew(self) -> None:
        """The loop has got a batch. What was exchanged since the step isn't part of a forward pass."""
        if self._counts and self._has_stepped:
            self._gathered += self._since() > 0
            self._has_stepped = False

    def begin_backward(self, loss: Any) -> None:
        if self._counts:
            self._backwards += 1
            self._crossed += self._since() > 0
            self._is_whole = self._is_whole and loss.numel() == 1

    def end_backward(self) -> None:
        if self._counts:
            self._exchanges = self._since() > 0 or self._exchanges

    def before_step(self, optimizer: Any) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:  # the id of one that is gone is used again
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        if self._counts:
            self._exchanges = self._since() > 0 or self._exchanges
        if self._probe is not None and not self._rewritten:
            self._rewritten = self._has_changed()

    def after_step(self) -> None:
        if self._counts:
            self._steps += 1
            # Some optimizers exchange in their step.
            self._exchanged += self._since() > 0 or self._exchanges
            self._exchanges, self._has_stepped = False, True
        if self._probe is None and self._steps <= _CHOSEN_WITHIN:
            self._choose_probe()
        if self._probe is not None:
            self._keep()

    # -- looks ---------------------------------------------------------------------------------------

    def look(self, steps: int) -> None:
        """Look at the weights after `steps` steps, if a look is due and possible."""
        number = self._looks
        self._looks += 1
        self._latest = None
        if not self.is_on or (number > _EACH_EPOCH and number % _EACH_EPOCH):
            return
        parameters = list(self._parameters())
        if not self.is_on or not parameters or _is_capturing():
            return
        tensors = [part.detach() for _, part, _ in parameters]
        norms = _norms([*tensors, *(_gradient(part) for _, part, _ in parameters)])
        self._latest = Weights(
            number=number,
            steps=steps,
            names=[name for name, _, _ in parameters],
            averaged=[is_averaged for _, _, is_averaged in parameters],
            weights=norms[: len(tensors)],
            gradients=norms[len(tensors) :],
        )

    def begin_epoch(self, steps: int) -> Weights | None:
        """Return the look at the weights before the first step of an epoch, if there is one."""
        if self._latest is None or self._latest.steps != steps:
            self.look(steps)
        elif not any(self._latest.gradients):  # the loop had set them to None when it reported
            self._latest = self._with_gradients(self._latest)
        return self._to_send(last=False)

    def end(self, steps: int) -> Weights | None:
        """Return the look at the weights when the loop is over, if there is one of its latest step."""
        if self._probe is not None and self._has_changed():
            self._rewritten = True
        if self._latest is None or self._latest.steps != steps:
            self.look(steps)
        return self._to_send(last=True)

    def _with_gradients(self, look: Weights) -> Weights:
        parameters = list(self._parameters())
        if not self.is_on or [name for name, _, _ in parameters] != look.names:
            return look
        return replace(look, gradients=_norms([_gradient(part) for _, part, _ in parameters]))

    def _to_send(self, *, last: bool) -> Weights | None:
        look, self._latest = self._latest, None
        if look is None:
            return None
        return replace(
            look,
            last=last,
            is_whole=self._is_whole and self._backwards > 0,
            crossed=self._crossed / max(self._backwards, 1),
            exchanged=self._exchanged / max(self._steps, 1),
            gathered=self._gathered / max(self._steps, 1),
            rewritten=self._rewritten,
            syncs_buffers=self._syncs_buffers,
        )

    def _parameters(self) -> Iterator[tuple[str, Any, bool]]:
        """The name or shape of each parameter, the parameter, and whether a wrapper averages it.

        Those of wrapped models come first, then what else is in an optimizer.
        """
        seen = set[int]()
        wrapped = [
            (name, part, id(part) in averaged)
            for model, averaged in self._wrapped
            for name, part in _named(model())
        ]
        for name, part, is_averaged in [*wrapped, *((name, part, False) for name, part in self._stepped())]:
            if id(part) in seen:
                continue
            seen.add(id(part))
            if _is_in_parts(part):
                self.is_on = False
            elif type(part).__name__ in ("Parameter", "Tensor") and part.is_floating_point():
                yield name or f"a tensor of shape {tuple(part.shape)}", part, is_averaged

    def _stepped(self) -> Iterator[tuple[str, Any]]:
        """The parameters of all optimizers that have made a step; a name only if the optimizer has it."""
        for reference in self._optimizers.values():
            optimizer = reference()
            for group in optimizer.param_groups if optimizer is not None else ():
                names = group.get("param_names") or [""] * len(group["params"])
                yield from zip(names, group["params"], strict=True)

    # -- inside --------------------------------------------------------------------------------------

    @property
    def _counts(self) -> bool:
        return self._steps < _COUNTED

    def _since(self) -> int:
        """How many collectives were run since the last call."""
        before = self._mark
        self._mark = collectives()
        return self._mark - before

    def _choose_probe(self) -> None:
        """Choose the smallest parameter that is trained: often the bias of the last layer."""
        trained = [part for _, part, _ in self._parameters() if part.grad is not None]
        if self.is_on and trained:
            self._probe = min(reversed(trained), key=lambda part: part.numel())

    def _keep(self) -> None:
        if self._probe.device.type != "cpu":  # to compare values would cost kernels
            self._version = self._probe._version
        elif self._kept is None:
            self._kept = self._probe.detach().clone()
        else:
            self._kept.copy_(self._probe.detach())

    def _has_changed(self) -> bool:
        if self._kept is None:
            return self._probe._version != self._version
        return not sys.modules["torch"].equal(self._probe.detach(), self._kept)


def _named(model: Any) -> list[tuple[str, Any]]:
    return [] if model is None else list(model.named_parameters())


def _is_in_parts(part: Any) -> bool:
    """Whether this rank holds only a part of a parameter, or nothing of it yet."""
    kinds = {kind.__name__ for kind in type(part).__mro__}
    return (
        not kinds.isdisjoint(_SHARDED) or part.is_meta or any(hasattr(part, mark) for mark in _SHARDED_MARKS)
    )


def _gradient(tensor: Any) -> Any:
    gradient = tensor.grad
    if gradient is None or gradient.layout is not sys.modules["torch"].strided:
        return None
    return gradient.detach()


def _norms(tensors: list[Any]) -> list[float | None]:
    """The norm of each tensor in float64, None for what is no tensor or not finite; one wait for a device."""
    torch = sys.modules["torch"]
    norms: list[float | None] = [None] * len(tensors)
    by_device: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            by_device.setdefault(tensor.device, []).append(place)
    with torch.no_grad():
        for places in by_device.values():
            each = [torch.linalg.vector_norm(tensors[place], dtype=torch.float64) for place in places]
            for place, norm in zip(places, torch.stack(each).tolist(), strict=True):
                norms[place] = norm if isfinite(norm) else None
    return norms


def _is_capturing() -> bool:
    """Whether a CUDA graph is captured: to read a number would spoil that."""
    cuda = sys.modules["torch"].cuda
    return cuda.is_initialized() and cuda.is_current_stream_capturing()
