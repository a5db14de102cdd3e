"""Follow a training loop that knows nothing of the panel, from outside.

    with following(tracker, train_loop):
        train_loop(config)

**The hooks look on.** ``iter()`` happens when the loop calls it, the loop gets the loader's own iterator (or,
of a generator, a wrapper with the same batches), and what can be iterated twice still can. Only the thread
that runs the loop is followed, and in it only the outermost iterator: the loaders of Ray and accelerate wrap
another one and fetch one batch ahead. `labkit.worker.follower` has what they note.

A module that the loop has not imported yet is hooked when it does: a worker that needs no torch gets none.
"""

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from labkit.worker import Tracker, events
from labkit.worker.calls import calls_to
from labkit.worker.follower import Follower, current, followers
from labkit.worker.loaders import notes_on

__all__ = ["current", "following"]


@contextlib.contextmanager
def following(tracker: Tracker, loop: Any = None) -> Iterator[None]:
    """Follow `loop` while the block runs it in this thread; afterwards no hook is left in this process.

    What `ray.train.report` calls is followed, too: only the worker knows how many passes were over then.
    """
    follower = Follower(tracker)
    well = False
    with _Hooks(follower) as hooks:  # they are also put back if the reader interrupts `finish`
        try:
            hooks.put(tracker, loop)
            yield
            well = True
        finally:
            follower.finish(well=well)


class _Hooks(contextlib.ExitStack):
    """What is replaced for one follower, until the end of a ``with`` block."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower

    def put(self, tracker: Tracker, loop: Any) -> None:
        """Set the hooks in the modules that are there, and in others when they are imported."""
        followers.append(self._follower)
        self.callback(followers.remove, self._follower)
        if loop is not None and hasattr(sys.modules.get("ray.train.torch"), "prepare_data_loader"):
            calls = calls_to(loop, "ray.train.torch", "prepare_data_loader", _preparing(tracker))
            self.enter_context(calls)
        later = {name for name in _HOOKS if name not in sys.modules}
        for name in _HOOKS.keys() - later:
            self.put_in(name)
        finder = _Finder(self, later)
        sys.meta_path.insert(0, finder)
        self.callback(finder.remove)

    def put_in(self, name: str) -> None:
        """Set the hooks of one module."""
        follower = self._follower
        if not follower.is_on:
            return
        module = sys.modules[name]
        if name == _OPTIMIZERS:
            before = module.register_optimizer_step_pre_hook(follower.before_step)
            self.callback(before.remove)
            after = module.register_optimizer_step_post_hook(follower.after_step)
            self.callback(after.remove)
        for owner, attribute, hook in _HOOKS[name]:
            cls = getattr(module, owner, None)
            if cls is not None:
                self._replace(cls, attribute, hook)

    def _replace(self, cls: type, name: str, hook: Callable) -> None:
        original = vars(cls)[name]
        replacement = functools.wraps(original)(hook(self._follower, original))

        def put_back() -> None:
            if vars(cls).get(name) is replacement:  # else other code has replaced it since
                setattr(cls, name, original)

        setattr(cls, name, replacement)
        self.callback(put_back)


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
        ("LocalTrainFnUtils", "report", Follower.noting_report),
    ],
    "ray.data.iterator": [
        ("_IterableFromIterator", "__iter__", Follower.giving_columns),
        ("DataIterator", "iter_rows", Follower.giving_rows),
        ("DataIterator", "iter_torch_batches", Follower.collating),
    ],
    "accelerate.data_loader": [
        ("DataLoaderShard", "__iter__", Follower.generating),
        ("DataLoaderDispatcher", "__iter__", Follower.giving_columns),
    ],
}


class _Finder:
    """Hooks a module as soon as its import is over."""

    def __init__(self, hooks: _Hooks, names: set[str]) -> None:
        self._hooks = hooks
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self._names.discard(name)  # so that the other finders are asked
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._names.add(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._hooks.put_in(name)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def remove(self) -> None:
        """Take this finder out of Python's, if no other code has."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)


def _preparing(tracker: Tracker) -> Callable:
    """Return what replaces ``ray.train.torch.prepare_data_loader`` in the loop."""
    original = sys.modules["ray.train.torch"].prepare_data_loader

    @functools.wraps(original)
    def prepare_data_loader(data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original(data_loader, *args, **kwargs)
        with contextlib.suppress(Exception):  # a loader may be anything, and a note is never worth an error
            for text in notes_on(data_loader, prepared):
                tracker.emit(events.Note(text))
        return prepared

    return prepare_data_loader
