"""What is read of Tune's trials: configurations, ends, failures."""

from types import SimpleNamespace

import numpy
import pytest
import ray
from ray import cloudpickle

from labkit.tune import trials


def test_a_configuration_is_shown_flat_and_without_what_nobody_can_read():
    config = {
        "lr": numpy.float64(0.5),
        "model": {"width": 3, "kind": "cnn", "deep": None},
        "data": object(),
        "fn": print,
        "on": True,
    }
    shown = trials.shown_config(config)
    assert shown == {"lr": 0.5, "model/width": 3, "model/kind": "cnn", "model/deep": None, "on": True}
    assert type(shown["lr"]) is float


@pytest.mark.parametrize("value", [object(), "text", None, numpy.ones(3), [1]])
def test_what_is_no_number(value):
    assert trials.number(value) is None


STOP = {"accuracy": 0.9, "training_iteration": 20}


@pytest.mark.parametrize(
    "iteration, accuracy, done, end",
    [
        (20, 0.5, True, ("finished", "20 iterations")),
        (4, 0.95, True, ("finished", "accuracy ≥ 0.9")),
        (3, 0.5, True, ("stopped early", "stopped at rung 3")),
        (3, 0.5, False, ("finished", "")),
        (9, 0.5, True, ("finished", "9 iterations")),  # the scheduler's longest
        (5, 0.5, True, ("finished", "")),  # the trainable said so itself
        (1, 0.5, True, ("stopped early", "stopped at rung 1")),
    ],
)
def test_how_a_trial_ended(iteration, accuracy, done, end):
    trial = SimpleNamespace(stopping_criterion=STOP)
    result = {"training_iteration": iteration, "accuracy": accuracy, "done": done}
    assert trials.end_of(trial, result, rungs=[1, 3, 9], max_iterations=9 if iteration < 20 else 27) == end


def test_names_that_are_the_trainables_own():
    result = {"score": 1, "training_iteration": 2, "pid": 3, "node_ip": "a", "trial_id": "x", "config/lr": 1}
    assert trials.reported_names(result) == ["score"]
    said = "Trial returned a result which did not include the specified metric(s) `a`. "
    message = said + "Result: {'score': 1, 'done': False, 'loss': 2}"
    assert trials.names_without_metric(message) == ["loss", "score"]
    assert trials.names_without_metric("CUDA error. Result: {'loss': 2}") is None


def failed(tmp_path, error=None, text="", kept=True):
    if error is not None and kept:
        (tmp_path / "error.pkl").write_bytes(cloudpickle.dumps(error))
    if text:
        (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at today)\n{text}\n")
    return SimpleNamespace(
        error_file=str(tmp_path / "error.txt"), pickled_error_file=str(tmp_path / "error.pkl")
    )


def test_why_a_trial_failed(tmp_path):
    def why(**options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return trials.why_failed(failed(folder, **options))

    memory = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.\nMore.")
    assert why(error=memory) == ("OutOfMemoryError: Task was killed due to the node running low on memory.")
    gone = ray.exceptions.ActorDiedError()
    assert why(error=gone).startswith("ActorDiedError: its process is gone")
    tune_says = "Trainable runner reuse requires reset_config() to be implemented and return True."
    assert trials.NO_RESET in why(text=tune_says)
    assert "ValueError: bad" in why(text='  File "/home/me/x.py", line 3, in step\nValueError: bad')
    assert why() == "no error was kept"


def test_the_last_of_several_failures(tmp_path):
    trial = failed(tmp_path, text="ValueError: first")
    with open(trial.error_file, "a") as file:
        file.write("Failure # 2 (occurred later)\nValueError: second\n")
    assert "second" in trials.why_failed(trial)


def test_the_place_of_a_trial_outlives_a_restart():
    assert trials.number_of(SimpleNamespace(trial_id="3ce1a_00017")) == 17
    assert trials.number_of(SimpleNamespace(trial_id="8bd41c7e")) is None
