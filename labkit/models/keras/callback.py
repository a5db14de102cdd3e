"""Keras reports into the panel: a callback for ``model.fit``.

    model.fit(rows, epochs=6, callbacks=[PanelCallback(panel, rows_per_step=64)])

It reports batches and epochs, as ``panel.steps`` and ``panel.log`` do in a loop of your own. The metrics of
an epoch are reported by Ray's ``ReportCheckpointCallback`` or ``ray.train.report``.
"""

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from labkit.errors import LabError

_Logs = dict[str, Any] | None


class PanelCallback(tf.keras.callbacks.Callback):
    """Sends the batches and epochs of a ``fit`` to a panel, from any process.

    The seconds in which Keras waits for data are inside its step, and count as training.

    Args:
        panel: of this run; in a worker, the tracker that the panel became when it was unpickled.
        rows_per_step: rows that this worker processes in a step, which the panel counts.
        epochs: of the whole run; default: those that ``fit`` was given.
        report: for a run without Ray Train: what to report to the panel after each epoch, as
            ``{"accuracy": "val_accuracy"}``: the name in the panel, and the one that Keras gives it.

    Raises:
        LabError: (at the start of ``fit``) there are several workers, and the model knows only this one.
    """

    _supports_tf_logs = True  # Keras 2: else it would fetch every number from the device at every step

    def __init__(
        self,
        panel: Any,
        *,
        rows_per_step: int = 1,
        epochs: int | None = None,
        report: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._panel, self._epochs, self._report = panel, epochs, report or {}
        self._rows_per_step = rows_per_step
        self._steps: Iterator = iter(())
        self._over, self._done = True, 0

    def on_train_begin(self, logs: _Logs = None) -> None:
        _refuse_a_model_of_its_own(self.model)

    def on_epoch_begin(self, epoch: int, logs: _Logs = None) -> None:
        epochs, total = self._epochs or self.params.get("epochs"), self.params.get("steps")
        self._over, self._done = False, 0
        # A stand-in for each batch, as long as it is: Keras keeps the batches themselves to itself.
        batches = itertools.takewhile(lambda _: not self._over, itertools.repeat(range(self._rows_per_step)))
        self._steps = self._panel.steps(batches, epoch=epoch, epochs=epochs, total=total)

    def on_train_batch_begin(self, batch: int, logs: _Logs = None) -> None:
        if not self._done:
            next(self._steps)  # the clock starts

    def on_train_batch_end(self, batch: int, logs: _Logs = None) -> None:
        replicas = _added_up(self.model)
        self._panel.log(**{name: value / replicas for name, value in (logs or {}).items()})
        # Advance one batch late: with an unknown length Keras calls on_train_batch_begin once more than there
        # are batches.
        if self._done:
            next(self._steps)
        self._done += 1

    def on_test_begin(self, logs: _Logs = None) -> None:
        if not self._over:  # within `fit`: with its validation rows
            self._end_of_steps()
            self._panel.phase("evaluating")

    def on_epoch_end(self, epoch: int, logs: _Logs = None) -> None:
        self._end_of_steps()
        if self._report:
            # Without validation data, or with `validation_freq=2`, an epoch has no val_accuracy.
            metrics = {name: logs[theirs] for name, theirs in self._report.items() if theirs in (logs or {})}
            self._panel.report({"epoch": epoch, **metrics}, epoch=epoch)

    def _end_of_steps(self) -> None:
        """Count the last step, and end the panel's steps."""
        self._over = True
        next(self._steps, None)


def _added_up(model: Any) -> int:
    """The number of replicas whose values Keras 2 adds up in a step's logs (an epoch's logs are means).

    Each replica's value is a mean already: with two workers an accuracy of 0.9 is logged as 1.8. See
    ``reduce_per_replica`` in tf_keras.
    """
    method = getattr(model, "distribute_reduction_method", None)  # private; Keras 3 has none
    return model.distribute_strategy.num_replicas_in_sync if method in ("auto", "sum") else 1


def _refuse_a_model_of_its_own(model: Any) -> None:
    """Refuse a model that was built outside the scope: each worker would train its own, without an error."""
    workers = len(json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}).get("worker", [0]))
    if model.distribute_strategy.num_replicas_in_sync < workers:
        fact = "it was built outside of the strategy's scope: every worker would train a model of its own"
        fix = "with strategy.scope(): model = …; model.compile(…)"
        raise LabError(f"train one model in {workers} workers", fact, fix)
