"""What a training loop does, as its optimizers and loaders tell it: steps, passes, epochs, rows and waiting.

- A *step* is an outermost step of an optimizer (ZeRO has one inside), at most one for each batch (a GAN has
  two optimizers). A loop without a loader has steps alone.
- A *pass* is one iteration over a loader. One in which an optimizer stepped is training: its rows, and the
  time of its ``iter()`` and ``next()``, which is waiting. All others are evaluation, and count nothing.
- An *epoch* is a training pass; with ``zip`` of several loaders, their passes together.

`labkit.worker.hooks` has the places where a `Follower` is called.
"""

import contextlib
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import get_ident
from time import perf_counter
from typing import Any

from labkit.worker import Tracker, events, group_size
from labkit.worker.alone import SoloWatch
from labkit.worker.events import number_of, numbers
from labkit.worker.parts import StepClocks
from labkit.worker.passes import Epoch, Pass, Sums
from labkit.worker.reports import Reports
from labkit.worker.rows import (
    Calibrated,
    Counter,
    forget_indexes,
    note_index,
    of_columns,
    one_row,
    torch_counter,
    unknown,
    wrapped_counter,
)
from labkit.worker.weights import WeightsWatch, is_capturing

_PAUSE = 0.2  # seconds between two events of a rank; a loss on a GPU is waited for only then
_OF_ALL = 40  # events a second of all ranks but rank 0 together, since one process takes them in …
_LONGEST = 2.0  # … but each rank's pause has at most these seconds
_STEPS_ALONE = 200  # steps without an exchange after which a worker trains alone; methods exist that wait
_SAME_BATCH = 3  # steps after the last batch that may still be for it; more of them need no loader
_KEPT = 64  # batches that a loader may draw from the one inside it before it gives the first
_COUNTER = "_labkit_counter"  # an attribute of Ray Data's iterables
_CLOCKS = ("forward", "backward", "exchange", "optimizer", "reports", "evaluating")  # sums of `StepClocks`

followers: list["Follower"] = []  # of this process, the innermost last


def _let_go() -> None:
    """Stop following in a fork, such as a loader's process: its parent has the rank."""
    for follower in followers:
        follower.let_go()


os.register_at_fork(after_in_child=_let_go)


class Follower:
    """Turns what one loop does into the events of its tracker; see the module."""

    def __init__(self, tracker: Tracker) -> None:
        workers = (tracker.in_worker and group_size()) or 1
        self._tracker = tracker
        self._thread: int | None = get_ident()  # that runs the loop; None when it isn't followed any more
        # The rows drawn within an `iter` or `next` that is being timed; those calls are its own.
        self._inside: deque[int | None] | None = None
        self._optimizer: int | None = None  # whose step is under way
        self._passes = weakref.WeakKeyDictionary[Any, Pass]()
        self._latest: Pass | None = None  # of them
        self._counters = weakref.WeakKeyDictionary[Any, Counter]()  # inside others
        self._drawn: list[Pass] = []  # from which passes the loop has drawn since the last step
        self._undrawn = 0  # steps since it has drawn
        self._epoch: Epoch | None = None
        self._epochs = 0
        self._steps = 0
        self._passes_made = False  # whether one of the epochs went over a loader
        self._left = 0.0  # when the epoch before ended
        self._sent = 0.0  # when a step was sent
        self._before = Sums()  # of all epochs that ended
        self._first_step_at = 0.0
        self._memory: dict[str, Any] = {}  # at the latest step that was sent
        self._pause = _PAUSE
        if tracker.rank() != 0:
            self._pause = min(max(workers / _OF_ALL, _PAUSE), _LONGEST)
        self._loss: Any = None  # of the latest `backward`
        self._shown: Any = None  # of the one before the latest step
        self._step_metrics: dict[str, Any] = {}  # of a loop that calls `step`
        self._counts_epochs = False  # whether the loop says itself where its epochs begin and end
        self._reported: float | None = None  # the latest epoch in a report
        self._scaled = False  # whether a `GradScaler` multiplies the loss
        self._loading = False  # whether a loader was iterated
        self._empty = False  # whether a loader had no batch
        self._solo = SoloWatch()
        self._reports = Reports()
        self._clocks = StepClocks(alone=workers == 1)
        self._weights = WeightsWatch() if workers > 1 and tracker.compares else None
        self.draw_watched = self.drawing(_next)

    # -- the hooks: what replaces a function, or is called after one -----------------------------------
    #
    # They run once for each batch, when a model's step has emptied the caches: few calls and few lookups.

    def iterating(self, original: Callable) -> Callable:
        """Hook ``iter(loader)`` of torch's own loaders."""

        def iterate(loader: Any) -> Any:
            forget_indexes(loader)
            return self._iterate(original, loader)

        return iterate

    def generating(self, original: Callable) -> Callable:
        """Hook ``iter(loader)`` where it gives a generator, which has no class to hook."""
        return lambda loader: self._iterate(original, loader, is_generator=True)

    def giving_columns(self, original: Callable) -> Callable:
        """Hook ``iter(batches)`` of Ray Data, and of accelerate's dispatcher, which cuts columns."""

        def iterate(batches: Any) -> Any:
            count = getattr(batches, _COUNTER, of_columns)
            return self._iterate(original, batches, count, is_generator=True)

        return iterate

    def _iterate(
        self,
        original: Callable,
        loader: Any,
        count: Counter | None = None,
        *,
        is_generator: bool = False,
    ) -> Any:
        if not self.sees() or self._inside is not None:
            return original(loader)
        if not self._loading:
            self._loading = True
            self._tracker.emit(events.Phase("loading"))
        began = perf_counter()
        inner: deque[int | None] = deque(maxlen=_KEPT)
        self._inside = inner
        try:
            iterator = original(loader)
        finally:
            self._inside = None
        if is_generator:
            iterator = Watched(iterator)
        if count is None:
            count = wrapped_counter(inner) if is_generator else torch_counter(iterator)
        seconds = perf_counter() - began
        with contextlib.suppress(TypeError):  # a loader's own iterator that can't be referred to weakly
            self._latest = Pass(loader, iterator, seconds, count, inner)
            self._passes[iterator] = self._latest
        return iterator

    def indexing(self, original: Callable) -> Callable:
        """Hook the call in which torch's iterator asks its sampler for the rows of a batch."""

        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            if get_ident() == self._thread:
                note_index(iterator, index)
            return index

        return next_index

    def drawing(self, original: Callable) -> Callable:
        """Hook ``next(iterator)``."""

        def draw(iterator: Any) -> Any:
            if get_ident() != self._thread:
                return original(iterator)
            if self._inside is not None:
                return self._draw_inside(original, iterator)
            loader_pass = self._latest
            if loader_pass is None or loader_pass.iterator() is not iterator:
                loader_pass = self._passes.get(iterator)
                if loader_pass is None:  # it was made before there were hooks
                    loader_pass = Pass(iterator, iterator, 0.0, unknown, deque(maxlen=_KEPT))
                    self._passes[iterator] = loader_pass
                self._latest = loader_pass
            began = perf_counter()
            busy = self._clocks.begin_draw()
            self._inside = loader_pass.inner
            try:
                batch = original(iterator)
            except StopIteration:
                loader_pass.over = True
                self._drew(loader_pass, began, busy, 0)
                raise
            finally:
                self._inside = None
            loader_pass.batches += 1
            try:
                self._drew(loader_pass, began, busy, loader_pass.count(batch))
            except Exception:  # a batch may be anything, and to count is never worth an error
                self.let_go()
            return batch

        return draw

    def _draw_inside(self, original: Callable, iterator: Any) -> Any:
        """Count the rows that a loader draws from the one inside it: how many they are is known there."""
        if type(iterator) is Watched:
            return original(iterator)
        inside = self._inside
        counters = self._counters
        assert inside is not None
        if iterator not in counters:
            counters[iterator] = torch_counter(iterator)
        batch = original(iterator)
        with contextlib.suppress(Exception):
            inside.append(counters[iterator](batch))
        return batch

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None and get_ident() == self._thread:
            self._optimizer = id(optimizer)
            self._clocks.before_step(perf_counter(), optimizer)
            if self._weights is not None:
                self._watch_weights(self._weights.before_step, optimizer)
            if self._weights is not None and self._begins_epoch():
                self._watch_weights(self._send_weights, self._weights.begin_epoch)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer != id(optimizer) or get_ident() != self._thread:
            return
        self._optimizer = None
        epoch = self._epoch
        drawn = self._drawn
        now = perf_counter()
        self._clocks.after_step(now)
        if self._weights is not None:
            self._watch_weights(self._weights.after_step)
        if drawn:
            self._undrawn = 0
        elif epoch is not None and epoch.first is not None:
            self._undrawn += 1
            if self._undrawn <= _SAME_BATCH or not self._is_over(epoch.first):
                return  # another optimizer has stepped for the same batch
        if len(drawn) == 1 and drawn[0].epoch is epoch is not None:
            epoch.claim(drawn[0])
        else:
            self._decide(drawn, now)
        drawn.clear()
        self._shown = self._loss
        self._made(now)

    def noting_loss(self, original: Callable) -> Callable:
        """Hook ``loss.backward()``."""

        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if get_ident() != self._thread:
                return original(loss, *args, **kwargs)
            # A DTensor may have to ask all ranks for its value: only a tensor of this process is read.
            if not self._scaled and type(loss) is sys.modules["torch"].Tensor and loss.numel() == 1:
                self._loss = loss.detach()
            self._clocks.begin_backward(perf_counter(), loss)
            if self._weights is not None and self._weights.counts:
                self._watch_weights(self._weights.begin_backward, loss)
            try:
                return original(loss, *args, **kwargs)
            finally:
                self._clocks.end_backward(perf_counter())
                if self._weights is not None and self._weights.counts:
                    self._watch_weights(self._weights.end_backward)

        return backward

    def noting_wrapper(self, original: Callable) -> Callable:
        """Hook ``DistributedDataParallel(model)``."""

        def wrap(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            if self._weights is not None and self.sees():
                self._watch_weights(self._weights.wraps, wrapper)

        return wrap

    def noting_evaluation(self, original: Callable) -> Callable:
        """Hook ``model.eval()``."""

        def evaluate(model: Any) -> Any:
            if self.sees():
                self._clocks.evaluates(perf_counter())
            return original(model)

        return evaluate

    def noting_scale(self, original: Callable) -> Callable:
        """Hook the call in which a `GradScaler` multiplies the loss by a factor of its own."""

        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._scaled = self._scaled or scaler.is_enabled()
            return original(scaler, *args, **kwargs)

        return scale

    def noting_report(self, original: Callable) -> Callable:
        """Hook ``ray.train.report``, by whatever name the loop has it."""

        def report(
            utils: Any,
            metrics: Any,
            checkpoint: Any = None,
            checkpoint_dir_name: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            # Ray keeps rank 0's metrics as JSON; in a run without workers, none.
            is_kept = self._tracker.in_worker and self._tracker.rank() == 0
            if is_kept and checkpoint is not None:
                for text in self._reports.notes_on(metrics, checkpoint_dir_name):
                    self._tracker.emit(events.Note(text))
            began = perf_counter()
            self.report(metrics, checkpoint=checkpoint)
            try:
                return original(utils, metrics, checkpoint, checkpoint_dir_name, *args, **kwargs)
            finally:
                if self.sees():
                    self._clocks.report(began, perf_counter())

        return report

    def giving_rows(self, original: Callable) -> Callable:
        """Hook ``shard.iter_rows()``."""

        def iter_rows(shard: Any, *args: Any, **kwargs: Any) -> Any:
            rows = original(shard, *args, **kwargs)
            setattr(rows, _COUNTER, one_row)
            return rows

        return iter_rows

    def collating(self, original: Callable) -> Callable:
        """Hook ``shard.iter_torch_batches()``: a `collate_fn` may make anything of the columns."""

        def iter_torch_batches(shard: Any, *, batch_size: int | None = 256, **options: Any) -> Any:
            batches = original(shard, batch_size=batch_size, **options)
            if options.get("collate_fn") is not None:
                setattr(batches, _COUNTER, Calibrated(batch_size))
            return batches

        return iter_torch_batches

    def report(self, metrics: Any, *, checkpoint: Any = None) -> None:
        """Take in a report of the loop; rank 0 speaks for all."""
        if not isinstance(metrics, Mapping):
            return
        place = self.place(metrics.get("epoch"))
        if checkpoint is not None and self.is_on:
            self._tracker.emit(events.Saved(self._epochs, self._steps))
        if self._tracker.rank() != 0:
            return
        sent = dict(metrics)
        if not self._tracker.in_worker:  # it stays in this process, unchanged
            texts = {name: value for name, value in metrics.items() if isinstance(value, str | int)}
            sent = numbers(metrics) | texts
        self._tracker.emit(events.Report(sent, *place))

    def place(self, epoch: Any) -> tuple[int | None, int]:
        """Return how far the loop is at a report of `epoch`.

        That is the number of passes that are over, None if unknown, and the steps since then.
        """
        if not self.is_on:
            return None, 0
        current = self._epoch
        number = number_of(epoch)
        if current is not None:
            if self._is_ended_by_report(current, number):
                if self._weights is not None:
                    self._watch_weights(self._weights.look, self._steps)
                self.end_epoch()
            else:
                self._send(current)
        self._reported = number
        goes_over_loaders = self._passes_made if current is None else current.first is not None
        if not self._counts_epochs and not goes_over_loaders:
            return None, 0
        steps = 0 if self._epoch is None else self._epoch.steps
        return self._epochs, steps

    def _is_ended_by_report(self, epoch: Epoch, number: float | None) -> bool:
        if epoch.first is not None:
            return self._is_over(epoch.first)
        if self._counts_epochs or number is None:
            return False
        # The loop has no loader: a report with a new epoch ends the one before.
        return number != self._reported and number % 1 == 0

    # -- what a loop calls whose optimizer has no hooks, such as Keras's --------------------------------

    def begin_epoch(self, steps: int | None = None) -> None:
        """Begin an epoch of `steps` steps, if their number is known."""
        self._counts_epochs = True
        epoch = self._open(None, perf_counter())
        epoch.length = steps

    def step(self, rows: int | None = None, **metrics: Any) -> None:
        """Count a step of `rows` rows, if known; the metrics are numbers, read a few times a second."""
        self._step_metrics = metrics
        epoch = self._epoch or self._open(None, perf_counter())
        epoch.rows += rows or 0
        epoch.counted = epoch.counted and rows is not None
        self._drawn.clear()  # it may draw from a loader, too
        self._made(perf_counter())

    def end_epoch(self) -> None:
        """End the epoch, if one is open."""
        epoch = self._epoch
        self._epoch = None
        if epoch is None:
            return
        for loader_pass in epoch.passes:
            if not loader_pass.over:  # it was left by `break`: its last batch was not trained
                loader_pass.rows = 0
            epoch.claim(loader_pass)
        self._before.add(epoch)
        self._epochs += 1
        self._left = epoch.ended
        self._passes_made = self._passes_made or epoch.first is not None
        self._send(epoch, done=True)
        if self._epochs == 2:
            self._look_whether_alone()

    # -- inside --------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return self._thread is not None

    def let_go(self) -> None:
        """Stop following."""
        self._thread = None

    def sees(self) -> bool:
        return get_ident() == self._thread

    def _drew(self, loader_pass: Pass, began: float, busy: float, rows: int | None) -> None:
        """Take in that the loop has called ``next``."""
        now = perf_counter()
        loader_pass.computing += self._clocks.end_draw(began, now, busy)
        if self._weights is not None and self._weights.counts:
            self._watch_weights(self._weights.drew)
        self._optimizer = None  # a step that has raised is over
        if not loader_pass.began:  # its first batch
            loader_pass.began = began - loader_pass.waiting
            loader_pass.first_wait = loader_pass.waiting + now - began
        if rows is None:
            loader_pass.counted = False
        else:
            loader_pass.rows += rows
        loader_pass.waiting += now - began
        if loader_pass.drawn_at != self._steps:
            loader_pass.drawn_at = self._steps
            self._drawn.append(loader_pass)
        elif loader_pass.epoch is None and self._clocks.backwards == loader_pass.backwards:
            self._clocks.evaluates(loader_pass.began)
        loader_pass.backwards = self._clocks.backwards
        if loader_pass.epoch is not None and loader_pass.epoch is self._epoch:
            loader_pass.epoch.ended = now
        if loader_pass.over and not loader_pass.batches and not self._steps and not self._empty:
            self._empty = True
            self._tracker.emit(events.Empty())

    def _made(self, now: float) -> None:
        """Count a step of the epoch that is open."""
        epoch = self._epoch
        assert epoch is not None  # `step` or `_decide` has opened it
        self._steps += 1
        epoch.steps += 1
        epoch.ended = now
        if self._steps == 1:
            self._first_step_at = now
            self._solo.begin()
        elif self._solo.is_on:
            self._solo.stepped()
            if self._steps == _STEPS_ALONE:
                self._look_whether_alone()
        if self._steps == 1 or now - self._sent > self._pause:
            self._send(epoch)

    def _watch_weights(self, note: Callable, *args: Any) -> None:
        """Let the watch note something; if it fails, the weights are not compared, and all else goes on."""
        try:
            note(*args)
        except Exception:  # an optimizer, a parameter and a wrapper may be anything
            self._weights = None

    def _begins_epoch(self) -> bool:
        """Return whether the step that comes is the first one of an epoch."""
        epoch = self._epoch
        if epoch is None:
            return True
        return epoch.first is not None and self._is_over(epoch.first)

    def _send_weights(self, take: Callable[[int], events.Weights | None]) -> None:
        look = take(self._steps)
        if look is not None:
            solo = self._solo.is_on or self._solo.has_spoken
            self._tracker.emit(replace(look, solo=solo))

    def _look_whether_alone(self) -> None:
        for text in self._solo.look():
            self._tracker.emit(events.Note(text))

    def _decide(self, drawn: list[Pass], now: float) -> None:
        """Find out for which of the passes that were drawn from an optimizer has stepped."""
        latest = next(filter(self._may_train, reversed(drawn)), None)
        for loader_pass in drawn:
            # One of several loaders is drawn from before each step; one that only evaluates is not.
            is_steady = loader_pass.epoch is not None or loader_pass.candidate_at == self._steps - 1 >= 0
            loader_pass.candidate_at = self._steps
            trains = loader_pass is latest
            if is_steady and not trains:
                trains = self._may_train(loader_pass) and not self._is_left(loader_pass)
            if not trains:
                continue
            is_open = loader_pass.epoch is not None and loader_pass.epoch is self._epoch
            if not is_open and not self._goes_on(loader_pass):
                self._open(loader_pass, loader_pass.began)
            assert self._epoch is not None  # the one that was opened, or that goes on
            self._epoch.claim(loader_pass)
        if latest is not None:
            return
        if self._epoch is None or self._epoch.first is not None:
            self._open(None, self._left or now)  # nothing tells when it has begun

    def _may_train(self, loader_pass: Pass) -> bool:
        """Return whether a step may be for this pass: if it was left, or is over, it was an evaluation."""
        if loader_pass.epoch is not None and loader_pass.epoch is self._epoch:
            return True
        return not self._is_over(loader_pass)

    def _is_left(self, loader_pass: Pass) -> bool:
        iterator = loader_pass.iterator()
        return iterator is None or self._passes.get(iterator) is not loader_pass

    def _is_over(self, loader_pass: Pass) -> bool:
        return loader_pass.over or self._is_left(loader_pass)

    def _goes_on(self, loader_pass: Pass) -> bool:
        """Return whether the epoch that is open includes a pass of another loader, as with ``zip``."""
        if self._epoch is None:
            return False
        first = self._epoch.first
        if first is None or self._is_over(first):
            return False
        if first.drawn_at < self._steps - 1:
            return False
        loader = loader_pass.loader()
        return loader is None or first.loader() is not loader

    def _open(self, first: Pass | None, began: float) -> Epoch:
        self.end_epoch()
        between = 0.0
        if self._left:
            between = max(began - self._left, 0.0)
        self._epoch = Epoch(self._epochs, first, began, between)
        return self._epoch

    def _send(self, epoch: Epoch, *, done: bool = False) -> None:
        first = epoch.first
        now = perf_counter()
        if not done:  # an end doesn't hold back the first step after it
            self._sent = now
            self._memory = memory()
        may_read = self._shown is not None and not self._scaled and not is_capturing()
        metrics = {"loss": self._shown} if may_read else self._step_metrics
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
            metrics=numbers(metrics),
            done=done,
            parts=self._parts(now),
            **self._memory,
        )
        self._tracker.emit(step)

    def _parts(self, now: float) -> dict[str, Any]:
        """Return the seconds of all steps by part, as `labkit.runs.verdict` takes them."""
        clocks = self._clocks
        if clocks.unseen:
            return {"unseen": clocks.unseen}
        sums = Sums()
        sums.add(self._before)
        if self._epoch is not None:
            sums.add(self._epoch)
        parts = {
            "steps": self._steps,
            "epochs": self._epochs,
            "rows": sums.rows,
            "wall": now - self._first_step_at,
            "data": sums.waiting,
            "computed": sums.computing,
            "queue": clocks.queued(),
        }
        for name in _CLOCKS:
            parts[name] = getattr(clocks, name)
        return {name: round(value, 6) for name, value in parts.items()}

    # -- the end ---------------------------------------------------------------------------------------

    def finish(self, *, well: bool) -> None:
        """Send what is left when the loop has returned, or has raised."""
        try:
            if self.is_on and well:
                self._send_end()
            elif self.is_on and self._epoch is not None:
                with contextlib.suppress(Exception):  # what the loop has raised is what counts
                    self._send(self._epoch)
        finally:  # also if the reader interrupts this
            self.let_go()
            self._clocks.close()

    def _send_end(self) -> None:
        now = perf_counter()
        self._clocks.end_evaluation(now)
        if self._weights is not None and self._steps:
            self._watch_weights(self._send_weights, self._weights.end)
        if self._epoch is None and self._epochs:  # it may have evaluated and saved after its last one
            seconds = now - self._left
            self._tracker.emit(events.End(seconds, self._parts(now)))
        self.end_epoch()
        self._look_whether_alone()


class Watched:
    """A generator of batches whose `next` is seen."""

    __slots__ = ("__weakref__", "_batches")

    def __init__(self, batches: Iterator) -> None:
        self._batches = batches

    def __iter__(self) -> "Watched":
        return self

    def __next__(self) -> Any:
        if followers:
            return followers[-1].draw_watched(self)
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # a TypeError, as without this, if it has none

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _next(watched: Watched) -> Any:
    return next(watched._batches)


def current() -> Follower | None:
    """Return what follows the loop that runs in this thread, if a panel does."""
    for follower in reversed(followers):
        if follower.sees():
            return follower
    return None


def memory() -> dict[str, Any]:
    """Return what this process uses: bytes of memory, and where PyTorch has a GPU, bytes of that."""
    usage: dict[str, Any] = {}
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:  # only Linux has it
        pages = int(file.read().split()[1])
        usage["memory"] = pages * os.sysconf("SC_PAGE_SIZE")
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        usage["gpu_memory"] = cuda.memory_reserved()
    return usage
