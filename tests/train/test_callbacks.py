"""What a validation, a controller and an upload tell the panel, from wherever they run."""

import sys
import time
from types import SimpleNamespace

import pytest
import ray
from ray import cloudpickle
from ray.train import ReportedCheckpointStatus

from labkit.panel import Panel
from labkit.panel.reporters import NullReporter
from labkit.settings import Settings
from labkit.train.callbacks import (
    STATUSES,
    ReportingValidator,
    checkpoint_status_callback,
    first_failure,
    local_reports,
    quiet_deaths,
)


@pytest.fixture
def panel(tmp_path):
    settings = Settings.from_env({"LABKIT_HOME": str(tmp_path)})
    with Panel("run", reporter=NullReporter(), settings=settings) as panel:
        yield panel


def sent(thing):
    """As it comes out in another process."""
    return cloudpickle.loads(cloudpickle.dumps(thing))


def heard(panel, condition):
    deadline = time.monotonic() + 10
    while not condition(panel.state):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.01)
    return panel.state


CHECKPOINT = SimpleNamespace(path="/runs/checkpoint_1")


def test_a_validation_is_the_function_that_it_watches(panel):
    def validate(checkpoint, rows=10):
        """What it is for."""
        return {"path": checkpoint.path, "rows": rows}

    watched = ReportingValidator(validate, panel)
    assert (watched.__name__, watched.__doc__) == ("validate", "What it is for.")
    assert sent(watched)(CHECKPOINT, rows=3) == {"path": CHECKPOINT.path, "rows": 3}
    state = heard(panel, lambda state: state.checkpoints and state.checkpoints[0].seconds is not None)
    assert [(span.row, span.status) for span in state.timeline(time.time())] == [("validation", "")]
    assert state.checkpoints[0].reason == ""


def test_what_it_raises_is_told_and_goes_on_to_ray(panel):
    def validate(checkpoint):
        raise ValueError("no\n  rows")

    with pytest.raises(ValueError, match="no"):
        sent(ReportingValidator(validate, panel))(CHECKPOINT)
    state = heard(panel, lambda state: state.checkpoints and state.checkpoints[0].reason)
    assert state.checkpoints[0].reason == "ValueError: no rows"
    assert state.timeline(time.time())[0].status == "failed"


def test_what_is_no_dict_is_told(panel):
    assert sent(ReportingValidator(lambda checkpoint: 0.9, panel))(CHECKPOINT) == 0.9  # Ray itself refuses it
    state = heard(panel, lambda state: state.checkpoints and state.checkpoints[0].reason)
    assert state.checkpoints[0].reason == "it returned float, and a dict of metrics is wanted"


def reported(status, path="/runs/checkpoint_1", **metrics):
    return SimpleNamespace(
        checkpoint=SimpleNamespace(path=path), status=ReportedCheckpointStatus[status], metrics=metrics
    )


@pytest.fixture
def callback(panel):
    """One that has come to the controller."""
    callback = sent(checkpoint_status_callback(panel))
    callback._known = {}
    return callback


def test_all_of_rays_statuses_have_a_word():
    assert set(STATUSES) == {status.value for status in ReportedCheckpointStatus}


def test_each_change_is_told_once(panel, callback):
    told = []
    callback.send = lambda **event: told.append((event["status"], event["metrics"]))
    for status, metrics in (
        ("PENDING_VALIDATION", {"loss": 1}),
        ("PENDING_VALIDATION", {"loss": 1}),
        ("VALIDATED", {"loss": 1, "accuracy": 0.9}),
        ("VALIDATED", {"loss": 1, "accuracy": 0.9}),
    ):
        callback._send_changes([reported(status, **metrics)])
    assert told == [("pending", {"loss": 1}), ("validated", {"loss": 1, "accuracy": 0.9})]


def test_of_an_earlier_run_only_what_is_left_to_do_is_told(panel, callback):
    told = []
    callback.send = lambda **event: told.append((event["path"], event["status"]))
    old = [reported("VALIDATED", "/a"), reported("PENDING_VALIDATION", "/b"), reported("COMMITTED", "/c")]
    callback._begin(old)
    callback._send_changes(
        [*old[:1], reported("VALIDATION_FAILED", "/b"), *old[2:], reported("COMMITTED", "/d")]
    )
    assert told == [("/b", "pending"), ("/b", "failed"), ("/d", "committed")]


def test_an_upload_is_timed_also_where_it_fails(panel):
    callback = sent(checkpoint_status_callback(panel))
    with callback.on_checkpoint_transfer():
        time.sleep(0.05)
    with pytest.raises(OSError, match="full"), callback.on_checkpoint_transfer():
        raise OSError("the disk is full")
    spans = heard(panel, lambda state: len(state.spans) == 2).spans
    assert [span.row for span in spans] == ["upload", "upload"] and spans[0].end - spans[0].begin > 0.02


def test_it_goes_on_from_the_controller_to_the_workers(panel, callback):
    """With threads and locks that are the controller's own."""
    import threading

    callback._ended = threading.Event()
    assert not hasattr(sent(callback), "_ended")


def test_a_panel_that_is_gone_disturbs_nobody(panel):
    watched = cloudpickle.dumps(ReportingValidator(lambda checkpoint: {"a": 1}, panel))
    panel._listener.close()
    assert cloudpickle.loads(watched)(CHECKPOINT) == {"a": 1}


def test_a_ray_without_the_private_hooks_costs_information_and_no_training(panel, monkeypatch):
    for module in ("callback", "train_fn_utils"):
        monkeypatch.setitem(sys.modules, f"ray.train.v2._internal.execution.{module}", None)
    monkeypatch.delattr("ray._private.worker.print_to_stdstream")
    assert checkpoint_status_callback(panel) is None
    with local_reports(print), quiet_deaths():
        pass


def test_that_a_worker_died_is_not_printed_ended_again(capsys):
    from ray._private import worker

    death = "A worker died or was killed while executing a task by an unexpected system error."
    with quiet_deaths():
        for text in (death, "the disk is nearly full"):
            worker.print_to_stdstream(
                {"lines": [text], "pid": "raylet", "is_err": False}, ignore_prefix=False
            )
    said = capsys.readouterr().out
    assert "the disk is nearly full" in said and "died" not in said


class HealthCheckFailed(Exception):
    def __init__(self, cause):
        super().__init__("A worker health check failed.")
        self.health_check_failure = cause


DEAD = HealthCheckFailed(
    ray.exceptions.RayActorError(error_msg="The actor is dead because its worker process has died.")
)
LOST = HealthCheckFailed(
    ray.exceptions.RayActorError(error_msg="The actor died unexpectedly because its node has died.")
)
HUNG = type(
    "WorkerHealthCheckTimeoutError", (Exception,), {"__module__": "ray.train.v2._internal.exceptions"}
)("A worker health check has been hanging for 5 s.\nSet RAY_TRAIN_… to wait longer")
GLOO = RuntimeError("Traceback (most recent call last):\n  …\nRuntimeError: Connection closed by peer")


@pytest.mark.parametrize(
    "exceptions, rank, text",
    [
        ({0: GLOO, 1: DEAD}, 1, "rank 1 is gone: killed, or out of memory"),
        ({0: GLOO, 2: LOST}, 2, "rank 2 is gone: its node was lost"),
        ({1: HUNG}, 1, "rank 1 failed: A worker health check has been hanging for 5 s."),
        ({0: GLOO, 1: GLOO}, 0, f"RuntimeError: {GLOO}"),
    ],
)
def test_the_failure_that_caused_the_others_is_told(exceptions, rank, text):
    assert first_failure(exceptions) == (rank, text)
