"""Follow a training loop that knows nothing of the panel: what its optimizers and loaders do, from outside.

    with following(tracker, train_loop):
        train_loop(config)

**The hooks look on and change nothing.** ``iter()`` happens when the loop calls it, the loop gets the
loader's own iterator, and what can be iterated twice still can. Only the thread that runs the loop is
followed, and in it only the outermost iterator: the loaders of Ray and accelerate wrap another one and
fetch one batch ahead.

- A *step* is an outermost step of an optimizer (ZeRO has one inside), at most one for each batch (a GAN has
  two optimizers). A loop without a loader has steps alone.
- A *pass* is one iteration over a loader. One in which an optimizer stepped is training: its rows, and the
  time of its ``iter()`` and ``next()``, which is waiting. All others are evaluation, and count nothing.
- An *epoch* is a training pass; with ``zip`` of several loaders, their passes together.

A module that the loop has not imported yet is hooked when it does: a worker that needs no torch gets none.
"""

import contextlib
import functools
import importlib.machinery
import inspect
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import get_ident
from time import perf_counter
from types import ModuleType
from typing import Any

from labkit.worker import Tracker, events, group_size
from labkit.worker.alone import SoloWatch
from labkit.worker.loaders import notes_on
from labkit.worker.parts import StepClocks
from labkit.worker.reports import Reports
from labkit.worker.rows import (
    Calibrated,
    Counter,
    forget_indexes,
    note_index,
    of_columns,
    one_row,
    torch_counter,
    wrapped_counter,
)
from labkit.worker.weights import WeightsWatch

_WEIGH_EVERY = 0.3  # seconds: the system counts pages for a tenth of a millisecond
_PAUSE = 0.2  # seconds between two events of a rank; a loss on a GPU is waited for only then
_OF_ALL = 40  # events a second of all ranks but rank 0 together, since one process takes them in …
_LONGEST = 2.0  # … but each rank's pause has at most these seconds
_STEPS_ALONE = 200  # steps without an exchange after which a worker trains alone; methods exist that wait
_KEPT = 64  # batches that a loader may draw from the one inside it before it gives the first
_COUNTER = "_labkit_counter"  # an attribute of Ray Data's iterables

_following: list["Follower"] = []  # of this process, the innermost last


def _let_go() -> None:
    """In a fork, such as a loader's process: its parent has the rank."""
    for follower in _following:
        follower._on = False


os.register_at_fork(after_in_child=_let_go)


class Pass:
    """One iteration over a loader, by a loop that did not tell what for.

    `inner` gets the rows of the batches that this loader draws from one inside it.
    """

    def __init__(
        self, loader: Any, iterator: Any, seconds: float, count: Counter, inner: deque[int | None]
    ) -> None:
        self.loader, self.iterator = weakref.ref(loader), weakref.ref(iterator)
        self.count, self.inner = count, inner
        self.counted = True  # whether the rows of all its batches are known
        self.epoch: Epoch | None = None  # that it trains, once that is known
        self.total = _length(loader)
        self.began = 0.0
        self.batches = 0
        self.rows, self.waiting = 0, seconds  # those that no step has claimed yet
        self.computing = 0.0  # the part of `waiting` in which this thread had work to do
        self.first_wait = seconds
        self.backwards = 0  # that the loop had made at the latest draw
        self.drawn_at = self.candidate_at = -1  # the latest step before which the loop drew from it
        self.over = False


class Epoch:
    """What the training passes of one epoch add up to."""

    def __init__(self, number: int, first: Pass | None, began: float, between: float) -> None:
        self.number, self.first, self.began, self.between = number, first, began, between
        self.ended = began
        self.length: int | None = None  # in steps, of one without a loader
        self.steps = self.rows = 0
        self.counted = True
        self.waiting = self.computing = 0.0
        self.passes: list[Pass] = []

    def add(self, one: Pass) -> None:
        """Claim what a pass has brought since the step before."""
        if one.epoch is not self:
            one.epoch = self
            self.passes.append(one)
            self.began = min(self.began, one.began)
        self.rows, self.waiting = self.rows + one.rows, self.waiting + one.waiting
        self.counted = self.counted and one.counted
        self.computing += one.computing
        one.rows, one.waiting, one.computing = 0, 0.0, 0.0

    @property
    def total(self) -> int | None:
        """Steps of the whole epoch, if its loader has a length; several batches may make one step."""
        first = self.first
        if first is None or first.total is None:
            return self.length
        return max(round(first.total * self.steps / max(first.batches, 1)), self.steps)


class Follower:
    """Turns what one loop does into the events of its tracker; see the module."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self._on, self._thread = tracker, True, get_ident()
        self._undo = contextlib.ExitStack()
        # The rows drawn within an `iter` or `next` that is being timed; those calls are its own.
        self._inside: deque[int | None] | None = None
        self._optimizer: int | None = None  # whose step is under way
        self._passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()
        self._latest: Pass | None = None  # of them
        self._counters: weakref.WeakKeyDictionary[Any, Counter] = weakref.WeakKeyDictionary()  # inside others
        self._drawn: list[Pass] = []  # from which passes the loop has drawn since the last step
        self._epoch: Epoch | None = None
        self._epochs = self._steps = 0
        self._passes_made = False  # whether one of them went over a loader
        self._left = self._sent = 0.0
        self._before = dict.fromkeys(("rows", "data", "computed"), 0.0)  # in all epochs that ended
        self._first_step_at = 0.0
        self._memory, self._weighed = dict[str, Any](), -_WEIGH_EVERY
        workers = (tracker.in_worker and group_size()) or 1
        self._pause = min(max(_PAUSE, workers / _OF_ALL), _LONGEST) if tracker.rank() else _PAUSE
        self._clocks = StepClocks(alone=workers == 1)
        self._loss: Any = None  # of the latest `backward`
        self._shown: Any = None  # of the one before the latest step
        self._told: dict[str, Any] = {}  # by a loop that counts
        self._counts_epochs = False  # whether the loop says itself where its epochs begin and end
        self._reported: float | None = None  # the latest epoch in a report
        self._solo = SoloWatch()
        self._reports = Reports()
        self._weights = WeightsWatch() if workers > 1 else None
        self._scaled = self._loading = self._empty = False
        self.draw_watched = self.drawing(_next)

    # -- the hooks: what replaces a function, or is called after one -----------------------------------
    #
    # They run once for each batch, when a model's step has emptied the caches: few calls and few lookups.

    def iterating(self, original: Callable) -> Callable:
        """``iter(loader)`` of torch's own."""

        def iterate(loader: Any) -> Any:
            forget_indexes(loader)
            return self._iterate(original, loader)

        return iterate

    def generating(self, original: Callable) -> Callable:
        """``iter(loader)`` of one that gives a generator, which has no class to hook."""
        return lambda loader: self._iterate(original, loader, Watched)

    def giving_columns(self, original: Callable) -> Callable:
        """``iter(batches)`` of Ray Data."""
        return lambda batches: self._iterate(
            original, batches, Watched, getattr(batches, _COUNTER, of_columns)
        )

    def dispatching(self, original: Callable) -> Callable:
        """``iter(loader)`` of accelerate's dispatcher, which cuts batches along the first dimension."""
        return lambda loader: self._iterate(original, loader, Watched, of_columns)

    def _iterate(
        self,
        original: Callable,
        loader: Any,
        wrap: Callable = lambda iterator: iterator,
        count: Counter | None = None,
    ) -> Any:
        if not self._sees() or self._inside is not None:
            return original(loader)
        if not self._loading:
            self._loading = True
            self._tracker.emit(events.Phase("loading"))
        began, inner = perf_counter(), deque[int | None](maxlen=_KEPT)
        self._inside = inner
        try:
            iterator = wrap(original(loader))
        finally:
            self._inside = None
        count = count or (wrapped_counter(inner) if wrap is Watched else torch_counter(iterator))
        self._latest = self._passes[iterator] = Pass(loader, iterator, perf_counter() - began, count, inner)
        return iterator

    def indexing(self, original: Callable) -> Callable:
        """torch's iterator asks its sampler for the rows of a batch."""

        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            if self._on and get_ident() == self._thread:
                note_index(iterator, index)
            return index

        return next_index

    def drawing(self, original: Callable) -> Callable:
        """``next(iterator)``."""

        def draw(iterator: Any) -> Any:
            if not self._on or get_ident() != self._thread:
                return original(iterator)
            if self._inside is not None:
                return self._draw_inside(original, iterator)
            one = self._latest
            if one is None or one.iterator() is not iterator:
                if (one := self._passes.get(iterator)) is None:  # it was made before there were hooks
                    one = Pass(iterator, iterator, 0.0, lambda batch: None, deque(maxlen=_KEPT))
                    self._passes[iterator] = one
                self._latest = one
            began, busy, self._inside = perf_counter(), self._clocks.begin_draw(), one.inner
            try:
                batch = original(iterator)
            except StopIteration:
                one.over = True
                self._drew(one, began, busy, 0)
                raise
            finally:
                self._inside = None
            one.batches += 1
            try:
                self._drew(one, began, busy, one.count(batch))
            except Exception:  # a batch may be anything, and to count is never worth an error
                self._on = False
            return batch

        return draw

    def _draw_inside(self, original: Callable, iterator: Any) -> Any:
        """A loader draws from the one inside it: how many rows that gave is known there."""
        if type(iterator) is Watched:
            return original(iterator)
        inside, counters = self._inside, self._counters
        assert inside is not None
        if iterator not in counters:
            counters[iterator] = torch_counter(iterator)
        batch = original(iterator)
        with contextlib.suppress(Exception):
            inside.append(counters[iterator](batch))
        return batch

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None and self._on and get_ident() == self._thread:
            self._optimizer = id(optimizer)
            self._clocks.before_step(perf_counter(), optimizer)
            if self._weights is not None:
                self._watch_weights(self._weights.before_step, optimizer)
            if self._weights is not None and self._begins_epoch():
                self._watch_weights(self._send_weights, self._weights.begin_epoch)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer != id(optimizer) or not self._on or get_ident() != self._thread:
            return
        self._optimizer, epoch, drawn = None, self._epoch, self._drawn
        now = perf_counter()
        self._clocks.after_step(now)
        if self._weights is not None:
            self._watch_weights(self._weights.after_step)
        if not drawn and epoch is not None and epoch.first is not None:
            return  # another optimizer has stepped for the same batch
        if len(drawn) == 1 and drawn[0].epoch is epoch is not None:
            epoch.add(drawn[0])
        else:
            self._decide(drawn, now)
        drawn.clear()
        self._shown = self._loss
        self._made(now)

    def noting_loss(self, original: Callable) -> Callable:
        """``loss.backward()``."""

        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            # A DTensor may have to ask all ranks for its value: only a tensor of this process is read.
            follows = self._on and not self._scaled and get_ident() == self._thread
            if follows and type(loss) is sys.modules["torch"].Tensor and loss.numel() == 1:
                self._loss = loss.detach()
            if not self._on or get_ident() != self._thread:
                return original(loss, *args, **kwargs)
            self._clocks.begin_backward(perf_counter(), loss)
            if self._weights is not None:
                self._watch_weights(self._weights.begin_backward, loss)
            try:
                return original(loss, *args, **kwargs)
            finally:
                self._clocks.end_backward(perf_counter())
                if self._weights is not None:
                    self._watch_weights(self._weights.end_backward)

        return backward

    def noting_wrapper(self, original: Callable) -> Callable:
        """``DistributedDataParallel(model)``."""

        def wrap(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            if self._weights is not None and self._sees():
                self._watch_weights(self._weights.wraps, wrapper)

        return wrap

    def noting_evaluation(self, original: Callable) -> Callable:
        """``model.eval()``."""

        def evaluate(model: Any) -> Any:
            if self._sees():
                self._clocks.evaluates(perf_counter())
            return original(model)

        return evaluate

    def noting_scale(self, original: Callable) -> Callable:
        """A `GradScaler` multiplies the loss by a factor of its own."""

        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._scaled = self._scaled or scaler.is_enabled()
            return original(scaler, *args, **kwargs)

        return scale

    def noting_report(self, original: Callable) -> Callable:
        """``ray.train.report`` in a worker, by whatever name the loop has it."""

        def report(utils: Any, metrics: Any, checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            if checkpoint is not None and self._tracker.rank() == 0:  # whose metrics Ray keeps
                folder = kwargs.get("checkpoint_dir_name", args[0] if args else None)
                for text in self._reports.notes_on(metrics, folder):
                    self._tracker.emit(events.Note(text))
            began = perf_counter()
            self.report(metrics, checkpoint=checkpoint)
            try:
                return original(utils, metrics, checkpoint, *args, **kwargs)
            finally:
                if self._sees():
                    self._clocks.report(began, perf_counter())

        return report

    def noting_local_report(self, original: Callable) -> Callable:
        """``ray.train.report`` of a run without workers, where Ray keeps no metrics as JSON."""

        def report(utils: Any, metrics: Any, checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            self.report(metrics, checkpoint=checkpoint)
            return original(utils, metrics, checkpoint, *args, **kwargs)

        return report

    def giving_rows(self, original: Callable) -> Callable:
        """``shard.iter_rows()``."""

        def iter_rows(shard: Any, *args: Any, **kwargs: Any) -> Any:
            rows = original(shard, *args, **kwargs)
            setattr(rows, _COUNTER, one_row)
            return rows

        return iter_rows

    def collating(self, original: Callable) -> Callable:
        """``shard.iter_torch_batches()``: a `collate_fn` may make anything of the columns."""

        def iter_torch_batches(shard: Any, *, batch_size: int | None = 256, **options: Any) -> Any:
            batches = original(shard, batch_size=batch_size, **options)
            if options.get("collate_fn") is not None:
                setattr(batches, _COUNTER, Calibrated(batch_size))
            return batches

        return iter_torch_batches

    def report(self, metrics: Any, *, checkpoint: Any = None) -> None:
        """The loop reports; rank 0 speaks for all."""
        if not isinstance(metrics, Mapping):
            return
        place = self.place(metrics.get("epoch"))
        if checkpoint is not None and self._on:
            self._tracker.emit(events.Saved(self._epochs, self._steps))
        if self._tracker.rank() == 0:
            sent = dict(metrics)
            if not self._tracker.in_worker:  # it stays in this process, unchanged
                texts = {name: value for name, value in metrics.items() if isinstance(value, str | int)}
                sent = numbers(metrics) | texts
            self._tracker.emit(events.Report(sent, metrics.get("epoch"), *place))

    def place(self, epoch: Any) -> tuple[int | None, int]:
        """How far the loop is at a report of `epoch`: the passes that are over, None if unknown, and steps
        since."""
        if not self._on:
            return None, 0
        current, number = self._epoch, number_of(epoch)
        if current is not None:
            if current.first is not None:
                is_over = self._is_over(current.first)
            else:  # the loop has no loader: a report with a new epoch ends the one before
                is_over = not self._counts_epochs and number not in (None, self._reported) and number % 1 == 0
            if is_over:
                if self._weights is not None:
                    self._watch_weights(self._weights.look, self._steps)
                self.end_epoch()
            else:
                self._send(current)
        self._reported = number
        knows_passes = self._counts_epochs or (current is not None and current.first is not None)
        if not knows_passes and not (current is None and self._passes_made):
            return None, 0
        return self._epochs, self._epoch.steps if self._epoch is not None else 0

    # -- what a loop calls whose optimizer has no hooks, such as Keras's --------------------------------

    def begin_epoch(self, steps: int | None = None) -> None:
        """An epoch begins, of `steps` steps if that is known."""
        self._counts_epochs = True
        self._open(None, perf_counter()).length = steps

    def step(self, rows: int | None = None, **metrics: Any) -> None:
        """A step of `rows` rows, if known, was made; the metrics are numbers, read a few times a second."""
        self._told = metrics
        epoch = self._epoch or self._open(None, perf_counter())
        epoch.rows += rows or 0
        epoch.counted = epoch.counted and rows is not None
        self._drawn.clear()  # it may draw from a loader, too
        self._made(perf_counter())

    def end_epoch(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is None:
            return
        for one in epoch.passes:
            one.rows *= one.over  # of a pass that was left by `break`, the last batch was not trained
            epoch.add(one)
        for name, value in self._sums_of(epoch).items():
            self._before[name] += value
        self._epochs, self._left = self._epochs + 1, epoch.ended
        self._passes_made = self._passes_made or epoch.first is not None
        self._send(epoch, done=True)
        if self._epochs == 2:
            self._look_whether_alone()

    # -- inside --------------------------------------------------------------------------------------

    def _sees(self) -> bool:
        return self._on and get_ident() == self._thread

    def _drew(self, one: Pass, began: float, busy: float, rows: int | None) -> None:
        """The loop has called ``next``."""
        now = perf_counter()
        one.computing += self._clocks.end_draw(began, now, busy)
        if self._weights is not None:
            self._watch_weights(self._weights.drew)
        self._optimizer = None  # a step that has raised is over
        if one.batches <= 1 and not one.began:
            one.began, one.first_wait = began - one.waiting, one.waiting + now - began
        if rows is None:
            one.counted, rows = False, 0
        one.rows, one.waiting = one.rows + rows, one.waiting + now - began
        if one.drawn_at != self._steps:
            one.drawn_at = self._steps
            self._drawn.append(one)
        elif one.epoch is None and self._clocks.backwards == one.backwards:
            self._clocks.evaluates(one.began)
        one.backwards = self._clocks.backwards
        if one.epoch is not None and one.epoch is self._epoch:
            one.epoch.ended = now
        if one.over and not one.batches and not self._steps and not self._empty:
            self._empty = True
            self._tracker.emit(events.Empty())

    def _made(self, now: float) -> None:
        epoch = self._epoch
        assert epoch is not None  # `step` or `_decide` has opened it
        self._steps += 1
        epoch.steps, epoch.ended = epoch.steps + 1, now
        if self._steps == 1:
            self._first_step_at = now
        if self._steps == 1 or now - self._sent > self._pause:
            self._send(epoch)
        if self._steps == 1:
            self._solo.begin(1)
        elif self._solo.is_on:
            self._solo.stepped(self._steps)
            if self._steps == _STEPS_ALONE:
                self._look_whether_alone()

    def _watch_weights(self, note: Callable, *seen: Any) -> None:
        """Let the watch note something; if it fails, the weights are not compared, and all else goes on."""
        try:
            note(*seen)
        except Exception:  # an optimizer, a parameter and a wrapper may be anything
            self._weights = None

    def _begins_epoch(self) -> bool:
        """Whether the step that comes is the first one of an epoch."""
        epoch = self._epoch
        return epoch is None or (epoch.first is not None and self._is_over(epoch.first))

    def _send_weights(self, take: Callable[[int], events.Weights | None]) -> None:
        look = take(self._steps)
        if look is not None:
            self._tracker.emit(replace(look, solo=self._solo.is_on or self._solo.has_spoken))

    def _look_whether_alone(self) -> None:
        for text in self._solo.look():
            self._tracker.emit(events.Note(text))

    def _decide(self, drawn: list[Pass], now: float) -> None:
        """An optimizer has stepped: which of the passes that were drawn from are training?"""
        trains = next(filter(self._may_train, reversed(drawn)), None)
        for one in drawn:
            # One of several loaders is drawn from before each step; one that only evaluates is not.
            known = one.epoch is not None or one.candidate_at == self._steps - 1 >= 0
            if one is trains or (known and self._may_train(one) and not self._is_left(one)):
                if (one.epoch is None or one.epoch is not self._epoch) and not self._goes_on(one):
                    self._open(one, one.began)
                assert self._epoch is not None  # the one that was opened, or that goes on
                self._epoch.add(one)
            one.candidate_at = self._steps
        if trains is None and (self._epoch is None or self._epoch.first is not None):
            self._open(None, now)

    def _may_train(self, one: Pass) -> bool:
        """Whether a step may be for this pass: one that was left, or is over, was an evaluation."""
        return (one.epoch is not None and one.epoch is self._epoch) or not self._is_over(one)

    def _is_left(self, one: Pass) -> bool:
        iterator = one.iterator()
        return iterator is None or self._passes.get(iterator) is not one

    def _is_over(self, one: Pass) -> bool:
        return one.over or self._is_left(one)

    def _goes_on(self, one: Pass) -> bool:
        """Whether the epoch that is open goes on with a pass of another loader, as with ``zip``."""
        first = self._epoch.first if self._epoch is not None else None
        if first is None or self._is_over(first) or first.drawn_at < self._steps - 1:
            return False
        loader = one.loader()
        return loader is None or first.loader() is not loader

    def _open(self, first: Pass | None, began: float) -> Epoch:
        self.end_epoch()
        self._epoch = Epoch(self._epochs, first, began, max(began - self._left, 0.0) if self._left else 0.0)
        return self._epoch

    def _send(self, epoch: Epoch, *, done: bool = False) -> None:
        first, now = epoch.first, perf_counter()
        self._sent = self._sent if done else now  # an end doesn't hold back the first step after it
        if now - self._weighed > _WEIGH_EVERY:
            self._memory, self._weighed = memory(), now
        step = events.Step(
            epoch=epoch.number,
            step=epoch.steps,
            made=self._steps,
            total=epoch.total,
            rows=epoch.rows if epoch.counted else None,
            seconds=max(epoch.ended - epoch.began, 0.0),
            waiting=epoch.waiting,
            first_wait=first.first_wait if first is not None else 0.0,
            between=epoch.between,
            ago=now - epoch.ended,
            metrics=numbers({"loss": self._shown} if self._may_read() else self._told),
            done=done,
            fed=first is not None or epoch.rows > 0 or not epoch.counted,
            parts=self._parts(now),
            **self._memory,
        )
        self._tracker.emit(step)

    def _sums_of(self, epoch: Epoch) -> dict[str, float]:
        return {"rows": epoch.rows, "data": epoch.waiting, "computed": epoch.computing}

    def _parts(self, now: float) -> dict[str, Any]:
        """The seconds of all steps by part, as `labkit.runs.verdict` takes them."""
        clocks, sums = self._clocks, dict(self._before)
        if clocks.unseen:
            return {"unseen": clocks.unseen}
        if self._epoch is not None:
            for name, value in self._sums_of(self._epoch).items():
                sums[name] += value
        names = ("forward", "backward", "exchange", "optimizer", "reports", "evaluating")
        parts = {name: getattr(clocks, name) for name in names}
        parts |= {
            "steps": self._steps,
            "epochs": self._epochs,
            "wall": now - self._first_step_at,
            "queue": clocks.queued(),
        }
        return {name: round(value, 6) for name, value in (sums | parts).items()}

    def _may_read(self) -> bool:
        """Whether there is a loss to show. Reading it while a CUDA graph is captured would spoil that."""
        if self._shown is None or self._scaled:
            return False
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        return cuda is None or not (cuda.is_initialized() and cuda.is_current_stream_capturing())

    # -- begin and end -------------------------------------------------------------------------------

    def install(self, loop: Any) -> None:
        """Set the hooks in the modules that are there, and in others when they are imported."""
        _following.append(self)
        self._undo.callback(_following.remove, self)
        if loop is not None and hasattr(sys.modules.get("ray.train.torch"), "prepare_data_loader"):
            prepare = _preparing(self._tracker)
            self._undo.enter_context(calls_to(loop, "ray.train.torch", "prepare_data_loader", prepare))
        later = {name for name in _HOOKS if name not in sys.modules}
        for name in _HOOKS.keys() - later:
            self.hook(name)
        finder = _Finder(self, later)
        sys.meta_path.insert(0, finder)
        self._undo.callback(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)

    def hook(self, name: str) -> None:
        """Set the hooks of one module."""
        if not self._on:
            return
        module = sys.modules[name]
        if name == _OPTIMIZERS:
            self._undo.callback(module.register_optimizer_step_pre_hook(self.before_step).remove)
            self._undo.callback(module.register_optimizer_step_post_hook(self.after_step).remove)
        for owner, attribute, hook in _HOOKS[name]:
            if (cls := getattr(module, owner, None)) is not None:
                self._replace(cls, attribute, hook)

    def _replace(self, cls: type, name: str, hook: Callable) -> None:
        original = vars(cls)[name]
        replacement = functools.wraps(original)(hook(self, original))

        def put_back() -> None:
            if vars(cls).get(name) is replacement:  # else other code has replaced it since
                setattr(cls, name, original)

        setattr(cls, name, replacement)
        self._undo.callback(put_back)

    def leave(self) -> None:
        """Take all hooks away: the loop is over."""
        self._on = False
        self._undo.close()
        self._clocks.close()

    def finish(self, *, well: bool) -> None:
        """The loop has returned, or has raised."""
        try:
            if self._on and well:
                now = perf_counter()
                self._clocks.end_evaluation(now)
                if self._weights is not None and self._steps:
                    self._watch_weights(self._send_weights, self._weights.end)
                if self._epoch is None and self._epochs:  # it may have evaluated and saved after its last one
                    self._tracker.emit(events.End(now - self._left, self._parts(now)))
                self.end_epoch()
                self._look_whether_alone()
            elif self._on and self._epoch is not None:
                self._send(self._epoch)
        finally:  # also if the reader interrupts this
            self.leave()


class Watched:
    """A generator of batches whose `next` is seen."""

    __slots__ = ("__weakref__", "_batches")

    def __init__(self, batches: Iterator) -> None:
        self._batches = batches

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> Any:
        return _following[-1].draw_watched(self) if _following else next(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _next(watched: Watched) -> Any:
    return next(watched._batches)


@contextlib.contextmanager
def following(tracker: Tracker, loop: Any = None) -> Iterator[None]:
    """Follow `loop` while the block runs it in this thread; afterwards no hook is left in this process.

    What `ray.train.report` calls is followed, too: only the worker knows how many passes were over then.
    """
    follower, well = Follower(tracker), False
    try:
        follower.install(loop)
        yield
        well = True
    finally:
        follower.finish(well=well)


def current() -> Follower | None:
    """What follows the loop that runs in this thread, if a panel does."""
    return next((one for one in reversed(_following) if one._sees()), None)


# -- the places -------------------------------------------------------------------------------------------

_OPTIMIZERS = "torch.optim.optimizer"  # has hooks of its own
_HOOKS: dict[str, list[tuple[str, str, Callable]]] = {
    _OPTIMIZERS: [],
    "torch._tensor": [("Tensor", "backward", Follower.noting_loss)],
    "torch.nn.modules.module": [("Module", "eval", Follower.noting_evaluation)],
    "torch.nn.parallel.distributed": [("DistributedDataParallel", "__init__", Follower.noting_wrapper)],
    "torch.amp.grad_scaler": [("GradScaler", "scale", Follower.noting_scale)],
    "torch.utils.data.dataloader": [
        ("DataLoader", "__iter__", Follower.iterating),
        ("_BaseDataLoaderIter", "__next__", Follower.drawing),
        ("_BaseDataLoaderIter", "_next_index", Follower.indexing),
    ],
    "torchdata.stateful_dataloader.stateful_dataloader": [
        ("StatefulDataLoader", "__iter__", Follower.iterating),
    ],
    "ray.train.torch.train_loop_utils": [("_WrappedDataLoader", "__iter__", Follower.generating)],
    "ray.train.v2._internal.execution.train_fn_utils": [
        ("DistributedTrainFnUtils", "report", Follower.noting_report),
        ("LocalTrainFnUtils", "report", Follower.noting_local_report),
    ],
    "ray.data.iterator": [
        ("_IterableFromIterator", "__iter__", Follower.giving_columns),
        ("DataIterator", "iter_rows", Follower.giving_rows),
        ("DataIterator", "iter_torch_batches", Follower.collating),
    ],
    "accelerate.data_loader": [
        ("DataLoaderShard", "__iter__", Follower.generating),
        ("DataLoaderDispatcher", "__iter__", Follower.dispatching),
    ],
}


class _Finder:
    """Hooks a module as soon as its import is over."""

    def __init__(self, follower: Follower, names: set[str]) -> None:
        self._follower, self._names = follower, names

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._names:
            return None
        others = (one for one in sys.meta_path if one is not self and hasattr(one, "find_spec"))
        spec = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._follower.hook(name)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _preparing(tracker: Tracker) -> Callable:
    """What replaces ``ray.train.torch.prepare_data_loader`` in the loop."""
    original = sys.modules["ray.train.torch"].prepare_data_loader

    @functools.wraps(original)
    def prepare_data_loader(data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(data_loader, *args, **kwargs)
        with contextlib.suppress(Exception):  # a loader may be anything, and a note is never worth an error
            for text in notes_on(data_loader, prepared):
                tracker.emit(events.Note(text))
        return prepared

    return prepare_data_loader


def reports_to(loop: Any, report: Callable) -> contextlib.AbstractContextManager:
    """`ray.train.report` is `report` in this block, by any name in the loop's module or in the notebook."""
    import ray.train  # noqa: F401 - not yet imported where a check runs a loop

    return calls_to(loop, "ray.train", "report", report)


@contextlib.contextmanager
def calls_to(loop: Any, module: str, name: str, replacement: Callable) -> Iterator[None]:
    """A function of a module is `replacement` in this block, by any name in the loop's module or notebook."""
    while isinstance(loop, functools.partial):
        loop = loop.func
    loop = inspect.unwrap(loop)  # a function, a method or a callable object
    loop = loop if hasattr(loop, "__globals__") else type(loop).__call__
    original = vars(sys.modules[module])[name]
    spaces = [vars(sys.modules[module]), getattr(loop, "__globals__", {}), vars(sys.modules["__main__"])]
    spaces += _of_readers_modules(name, original)
    places = [(space, known) for space in spaces for known, value in list(space.items()) if value is original]
    for space, known in places:
        space[known] = replacement
    try:
        yield
    finally:
        for space, known in places:
            if space.get(known) is replacement:
                space[known] = original


def _of_readers_modules(name: str, original: Callable) -> list[dict[str, Any]]:
    """The names of modules that have imported a function of Ray, such as a file in which loaders are made."""
    modules = [module for known, module in list(sys.modules.items()) if known.partition(".")[0] != "ray"]
    spaces = [getattr(module, "__dict__", {}) for module in modules]
    return [space for space in spaces if space.get(name) is original]


def number_of(epoch: Any) -> float | None:
    """An epoch as reported: a number from 0 on, maybe a fraction; None for anything else."""
    with contextlib.suppress(Exception):
        if isinstance(epoch, bool | str):
            return None
        number = float(epoch)
        return number if 0 <= number < 2**53 else None
    return None


def _length(loader: Any) -> int | None:
    """Batches of a loader, unless asking changes something: one of a stream remembers that it was asked."""
    data = getattr(loader, "dataset", None)
    streams = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if data is None or isinstance(data, streams):
        return None
    with contextlib.suppress(Exception):  # a sampler may be anything
        return len(loader)
    return None


def memory() -> dict[str, Any]:
    """What this process uses: bytes of memory, and where PyTorch has a GPU, bytes of that."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError), open("/proc/self/statm") as pages:  # only Linux has it
        found["memory"] = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        found["gpu_memory"] = cuda.memory_reserved()
    return found


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, or can be made one."""
    found = {}
    for name, value in metrics.items():
        # A string or an object is not for a curve. What it raises is its affair: torch takes RuntimeError.
        with contextlib.suppress(Exception):
            found[str(name)] = float(value)
    return found
