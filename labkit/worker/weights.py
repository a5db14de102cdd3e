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

import ctypes
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

from labkit.worker.alone import collectives
from labkit.worker.events import Weights

_EACH_EPOCH = 3  # looks at the first ones; then before each power of two, …
_SELDOM = 16  # … and one in so many epochs
_COUNTED = 64  # steps whose collectives are counted
_PROBED = 4096  # bytes of a parameter
_CHOSEN_WITHIN = 3  # steps
_SHARDED = ("DTensor", "FlatParameter", "ShardedTensor")
_WHOLE = ("Parameter", "Tensor")
_SHARDED_MARKS = ("_fsdp_flattened", "ds_id")  # attributes that FSDP and DeepSpeed set


class _Parameter(NamedTuple):
    name: str
    tensor: Any
    is_averaged: bool  # whether a wrapper averages its gradient


class WeightsWatch:
    """The looks at the weights of one loop; its methods are called in the thread of that loop."""

    def __init__(self) -> None:
        self.is_on = True
        self._looks = 0
        self._latest: Weights | None = None  # a look that was not sent yet
        self._optimizers = weakref.WeakKeyDictionary[Any, None]()  # that have made a step, in their order
        # Models inside of a wrapper, each with the ids of the parameters that are averaged.
        self._wrapped = weakref.WeakKeyDictionary[Any, set[int]]()
        self._syncs_buffers = False  # whether a wrapper sends buffers in each forward pass
        self._probe: _Probe | None = None
        self._kept: bytes | int = b""  # what it was after the latest step
        self._mark = collectives()
        # Those whose collectives were counted.
        self._steps = 0
        self._backwards = 0
        self._crossed = 0  # backwards with a collective in the forward pass
        self._exchanged = 0  # steps with a collective for the gradients
        self._gathered = 0  # steps with a collective after them
        self._exchanges = False  # whether the step that comes is one of `_exchanged`
        self._has_stepped = False  # whether the loop has drawn no batch since its step
        self._is_whole = True  # whether each backward began at one number
        self._rewritten = False  # whether weights have changed between two steps

    @property
    def counts(self) -> bool:
        """Whether it counts collectives: afterwards it need not hear of batches and backwards."""
        return self._steps < _COUNTED

    # -- what the loop does --------------------------------------------------------------------------

    def wraps(self, wrapper: Any) -> None:
        """Note that `DistributedDataParallel` has wrapped a model."""
        model = wrapper.module
        self._wrapped[model] = {id(tensor) for tensor in model.parameters() if tensor.requires_grad}
        self._syncs_buffers = self._syncs_buffers or wrapper.will_sync_module_buffers()

    def drew(self) -> None:
        """Note that the loop has a batch: what was exchanged before isn't part of a forward pass."""
        if not self._has_stepped:
            return
        if self._has_exchanged():
            self._gathered += 1
        self._has_stepped = False

    def begin_backward(self, loss: Any) -> None:
        self._backwards += 1
        if self._has_exchanged():
            self._crossed += 1
        self._is_whole = self._is_whole and loss.numel() == 1

    def end_backward(self) -> None:
        self._exchanges = self._has_exchanged() or self._exchanges

    def before_step(self, optimizer: Any) -> None:
        self._optimizers[optimizer] = None
        if self._probe is not None and not self._rewritten:
            self._rewritten = self._probe.content() != self._kept

    def after_step(self) -> None:
        if self.counts:
            self._steps += 1
            # Since the latest backward: in the gap before the step, or in it, as some optimizers do.
            if self._has_exchanged() or self._exchanges:
                self._exchanged += 1
            self._exchanges = False
            self._has_stepped = True
        if self._probe is None and self._steps <= _CHOSEN_WITHIN:
            self._choose_probe()
        if self._probe is not None:
            self._kept = self._probe.content()

    # -- looks ---------------------------------------------------------------------------------------

    def look(self, steps: int) -> None:
        """Look at the weights after `steps` steps, if a look is due and possible."""
        number = self._looks
        self._looks += 1
        self._latest = None
        is_power_of_two = number & (number - 1) == 0
        is_due = number < _EACH_EPOCH or is_power_of_two or number % _SELDOM == 0
        if not self.is_on or not is_due:
            return
        parameters = list(self._parameters())
        if not self.is_on or not parameters or is_capturing():
            return
        tensors = [part.tensor.detach() for part in parameters]
        gradients = [_gradient(part.tensor) for part in parameters]
        norms = _norms(tensors + gradients)
        self._latest = Weights(
            number=number,
            steps=steps,
            names=[part.name for part in parameters],
            averaged=[part.is_averaged for part in parameters],
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
        if self._probe is not None and self._probe.content() != self._kept:
            self._rewritten = True
        if self._latest is None or self._latest.steps != steps:
            self.look(steps)
        return self._to_send(last=True)

    def _with_gradients(self, look: Weights) -> Weights:
        parameters = list(self._parameters())
        names = [part.name for part in parameters]
        if not self.is_on or names != look.names:
            return look
        gradients = [_gradient(part.tensor) for part in parameters]
        return replace(look, gradients=_norms(gradients))

    def _to_send(self, *, last: bool) -> Weights | None:
        look = self._latest
        self._latest = None
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

    def _parameters(self) -> Iterator[_Parameter]:
        """Yield the parameters that can be compared; end the watch at one that can't."""
        seen = set[int]()
        for name, tensor, is_averaged in self._all_parameters():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if is_in_parts(tensor):
                self.is_on = False
            elif type(tensor).__name__ in _WHOLE and tensor.is_floating_point():
                name = name or f"a tensor of shape {tuple(tensor.shape)}"
                yield _Parameter(name, tensor, is_averaged)

    def _all_parameters(self) -> Iterator[_Parameter]:
        """Yield the parameters of wrapped models, and then of all optimizers that have made a step."""
        for model, averaged in self._wrapped.items():
            for name, tensor in model.named_parameters():
                yield _Parameter(name, tensor, id(tensor) in averaged)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                tensors = group["params"]
                names = group.get("param_names") or [""] * len(tensors)  # some optimizers have them
                for name, tensor in zip(names, tensors, strict=True):
                    yield _Parameter(name, tensor, False)

    # -- inside --------------------------------------------------------------------------------------

    def _has_exchanged(self) -> bool:
        """Return whether collectives were run since the last call."""
        before = self._mark
        self._mark = collectives()
        return self._mark > before

    def _choose_probe(self) -> None:
        """Choose the smallest parameter that is trained: often the bias of the last layer."""
        tensors = [part.tensor for part in self._parameters()]
        trained = [tensor for tensor in reversed(tensors) if tensor.grad is not None]
        if self.is_on and trained:
            self._probe = _Probe(min(trained, key=lambda tensor: tensor.numel()))


class _Probe:
    """A small parameter that is read twice in each step.

    It is read at its address: torch would take ten times as long to compare ten numbers.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._address: int | None = None
        self._size = 0

    def content(self) -> bytes | int:
        """Return the beginning of its values; of one on a device, its version, which costs no kernel."""
        tensor = self._tensor
        address = tensor.data_ptr()
        if address != self._address:  # the first time, or it was moved
            self._address = address
            self._size = 0
            if address and tensor.device.type == "cpu" and tensor.is_contiguous():
                self._size = min(tensor.numel() * tensor.element_size(), _PROBED)
        if not self._size:
            return tensor._version
        return ctypes.string_at(address, self._size)


def is_in_parts(tensor: Any) -> bool:
    """Return whether this rank holds only a part of a parameter, or nothing of it yet."""
    if tensor.is_meta:
        return True
    if any(hasattr(tensor, mark) for mark in _SHARDED_MARKS):
        return True
    return any(cls.__name__ in _SHARDED for cls in type(tensor).__mro__)


def _gradient(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    gradient = tensor.grad
    if gradient is None or gradient.layout is not torch.strided:
        return None
    return gradient.detach()


def _norms(tensors: list[Any]) -> list[float | None]:
    """Return the norm of each tensor in float64, with one wait for a device; None for None or infinity."""
    torch = sys.modules["torch"]
    norms: list[float | None] = [None] * len(tensors)
    by_device: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if tensor is not None:
            by_device.setdefault(tensor.device, []).append(place)
    with torch.no_grad():
        for places in by_device.values():
            each = [torch.linalg.vector_norm(tensors[place], dtype=torch.float64) for place in places]
            values = torch.stack(each).tolist()
            for place, norm in zip(places, values, strict=True):
                if isfinite(norm):
                    norms[place] = norm
    return norms


def is_capturing() -> bool:
    """Return whether a CUDA graph is captured, or CUDA has failed: to read a number would spoil the loop."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        return cuda is not None and cuda.is_initialized() and cuda.is_current_stream_capturing()
    except Exception:  # after an error of a kernel, each call raises that error
        return True
