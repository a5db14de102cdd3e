"""A callback with which the panel counts the steps of Keras: they are inside ``model.fit``, where no hook is.

    model.fit(rows, epochs=6, callbacks=[PanelCallback(rows_per_step=64)])

It works with Keras 3 on any backend, and with Keras 2. It finds the panel that follows the loop in which it
is called. The metrics of an epoch are reported by Ray's ``ReportCheckpointCallback`` or ``ray.train.report``.
"""

import importlib
import json
import os
import sys
from typing import Any

from labkit.errors import BadInput, LabError

__all__ = ["PanelCallback"]

_Logs = dict[str, Any] | None


def _callback_class() -> type:
    """Return the base class of callbacks in the Keras that this process uses."""
    # With TF_USE_LEGACY_KERAS, `tensorflow.keras` is Keras 2. On torch and JAX there may be no TensorFlow.
    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    try:
        if is_legacy:
            keras = importlib.import_module("tensorflow").keras
        else:
            keras = importlib.import_module("keras")
    except ModuleNotFoundError as error:
        raise LabError(
            "follow a fit of Keras",
            f"Keras can't be imported here: {error}",
            'pip install keras, and set os.environ["KERAS_BACKEND"] to a backend that is installed',
        ) from error
    return keras.callbacks.Callback


class PanelCallback(_callback_class()):  # type: ignore[misc]  # which Keras it is, is known only here
    """Tells the panel of the batches and epochs of a ``fit``, in any process; nothing without a panel.

    The seconds in which Keras waits for data are inside its step, and count as training.

    Args:
        rows_per_step: rows that this worker processes in a step. Without it the panel shows no rows/s.
        report: for a run without Ray Train: what to report to the panel after each epoch, as
            ``{"accuracy": "val_accuracy"}``: the name in the panel, and the one that Keras gives it.

    Raises:
        LabError: (at the start of ``fit``) there are several workers, and the model knows only this one.
    """

    _supports_tf_logs = True  # Keras 2: else it would fetch every number from the device at every step

    def __init__(
        self,
        *,
        rows_per_step: int | None = None,
        report: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._rows_per_step = rows_per_step
        self._report = report or {}
        self._panel: Any = None  # the `Follower` of the loop that calls `fit`

    def on_train_begin(self, logs: _Logs = None) -> None:
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        workers = config.get("cluster", {}).get("worker", [0])
        strategy = getattr(self.model, "distribute_strategy", None)  # only TensorFlow's backend has one
        if strategy is not None and strategy.num_replicas_in_sync < len(workers):
            raise BadInput(
                f"train one model in {len(workers)} workers",
                "it was built outside of the strategy's scope: every worker would train a model of its own",
                "with strategy.scope(): model = …; model.compile(…)",
            )
        self._panel = None
        hooks = sys.modules.get("labkit.worker.hooks")
        if hooks is not None:  # where a panel follows, it is imported
            self._panel = hooks.current()

    def on_epoch_begin(self, epoch: int, logs: _Logs = None) -> None:
        if self._panel is not None:
            self._panel.begin_epoch(self.params.get("steps"))

    def on_train_batch_end(self, batch: int, logs: _Logs = None) -> None:
        if self._panel is None:
            return
        replicas = _added_up(self.model)
        metrics = {}
        for name, value in (logs or {}).items():
            metrics[name] = value / replicas
        self._panel.step(self._rows_per_step, **metrics)

    def on_test_begin(self, logs: _Logs = None) -> None:
        if self._panel is not None:
            self._panel.end_epoch()  # what follows is `fit`'s validation

    def on_epoch_end(self, epoch: int, logs: _Logs = None) -> None:
        if self._panel is None:
            return
        self._panel.end_epoch()
        if not self._report:
            return
        report = {"epoch": epoch}
        for name, name_in_keras in self._report.items():
            # Without validation data, or with `validation_freq=2`, an epoch has no val_accuracy.
            if logs and name_in_keras in logs:
                report[name] = logs[name_in_keras]
        self._panel.report(report)


def _added_up(model: Any) -> int:
    """Return the number of replicas whose values Keras 2 adds up in a step's logs (an epoch's are means).

    Each replica's value is a mean already: with two workers an accuracy of 0.9 is logged as 1.8. See
    ``reduce_per_replica`` in tf_keras.
    """
    method = getattr(model, "distribute_reduction_method", None)  # private; Keras 3 has none
    if method in ("auto", "sum"):
        return model.distribute_strategy.num_replicas_in_sync
    return 1
