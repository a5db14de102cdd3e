"""What is read of Tune's trials: their numbers, ends and failures."""

from types import SimpleNamespace

import pytest
import ray
from ray import tune
from ray.air.execution.resources import placement_group
from ray.tune.schedulers import (
    ASHAScheduler,
    MedianStoppingRule,
    ResourceChangingScheduler,
)

from labkit import _tune
from labkit.cluster import capacity
from labkit.tune import trials
from labkit.tune.panel import SweepCallback, SweepPanel
from labkit.tune.trials import TunerPlan


@pytest.fixture
def panel(monkeypatch):
    """The panel that is open in this process."""
    panel = SweepPanel("sweep")
    panel.plan = TunerPlan.from_tuner(tune.Tuner(print, tune_config=tune.TuneConfig(metric="count")))
    panel.state = panel.new_state()
    panel.state.start("start", 1.0)
    monkeypatch.setattr(SweepPanel, "current", lambda: panel)
    return panel


def trial_of(x, status="RUNNING", **result):
    """What the callback reads of a trial, which may have a last result."""
    return SimpleNamespace(
        trial_id=f"t{x:05}",
        experiment_tag=f"{x}_x={x}",
        status=status,
        config={"x": x},
        run_metadata=SimpleNamespace(last_result=result),
    )


def test_a_restored_sweep_keeps_the_numbers_of_its_trials_and_counts_changed_configurations(panel):
    callback = SweepCallback()
    over = trial_of(0, "TERMINATED", count=0, training_iteration=1, done=True)
    trials = [trial_of(2, "PENDING"), trial_of(11, "PENDING"), over]
    callback.on_step_begin(trials=trials)
    callback.on_step_end()
    # Two more that ended here would say how long those to come take.
    assert (panel.state.over_before, panel.plan.ended) == (1, {"t00000"})
    numbers = {trial.config["x"]: trial.number for trial in panel.state.trials.values()}
    assert numbers == {0: 0, 2: 1, 11: 2} and panel.state.counts() == {"finished": 1, "waiting": 2}
    for config in ({"x": 2}, {"x": 3}):  # as population based training does it
        trials[0].config, trials[0].status = config, "RUNNING"
        callback.on_trial_result(trial=trials[0], result={"count": 1, "training_iteration": 2})
        callback.on_step_end()
    changed = panel.state.trials["t00002"]
    assert (changed.changes, changed.config, changed.status) == (1, {"x": 3}, "running")
    for trial in trials:  # as Tune ends all of them, at a limit of the whole sweep
        trial.status = "TERMINATED"
    callback.on_experiment_end(trials=trials)
    assert panel.state.counts() == {"finished": 1, "cut off": 2}


def test_the_time_left_counts_what_this_process_has_done(panel):
    state = panel.state
    state.total, state.over_before = 10, 6
    for number in range(10):
        state.add(str(number), {})
        state.set_status(str(number), "finished" if number < 6 else "running", now=1.0)
    assert state.eta(61.0) is None
    for number in (6, 7):
        state.set_status(str(number), "finished")
    assert state.eta(61.0) == pytest.approx(60)


@pytest.mark.parametrize("handled, counts", [(True, {"finished": 1}), (False, {"finished": 1, "cut off": 1})])
def test_an_error_that_the_reader_handles_ends_no_sweep(panel, handled, counts):
    """A sweep in an `except` block, such as after data that had to be fetched first."""
    ended, other = (trial_of(x, training_iteration=1, done=True) for x in range(2))
    callback = SweepCallback()
    callback.on_step_begin(trials=[ended] if handled else [ended, other])
    callback.on_trial_complete(trial=ended)  # since the last look at all trials
    ended.status = other.status = "TERMINATED"
    try:
        raise FileNotFoundError
    except FileNotFoundError as error:
        panel.handled = error if handled else None
        callback.on_experiment_end(trials=callback._trials)
    assert panel.state.counts() == counts


def asha(**options):
    return ASHAScheduler(metric="score", mode="max", reduction_factor=3, **options)


@pytest.mark.parametrize(
    "scheduler, times, stopped",
    [
        (asha(max_t=9), range(1, 10), {1, 2}),
        (asha(max_t=90, grace_period=10, time_attr="epoch"), range(10, 91, 10), {1, 2}),
        (MedianStoppingRule("epoch", "score", "max", grace_period=1, min_samples_required=2), [1], {2}),
    ],
)
def test_a_trial_that_its_scheduler_ends_is_stopped_early_in_whatever_it_counts(scheduler, times, stopped):
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=scheduler), None)
    asked = [tune.experiment.Trial("none", trial_id=f"t{k}", stub=True) for k in range(3)]
    controller = SimpleNamespace(get_live_trials=list)
    with plan.noting_stops():
        for trial, x in zip(asked, (9, 8, 1), strict=True):  # as Tune asks it
            scheduler.on_trial_add(controller, trial)
            for time in times:
                result = {plan.time: time, "score": x * (1 + time)}
                if scheduler.on_trial_result(controller, trial, result) == "STOP":
                    break
    assert plan.stopped == {f"t{k}" for k in stopped}
    assert "on_trial_result" not in vars(scheduler)


def test_trials_that_report_once_have_run(panel):
    """They are over when Tune's step ends, so none is seen running then."""
    callback, both = SweepCallback(), [trial_of(0), trial_of(1)]
    callback.on_step_begin(trials=both)
    for trial in both:
        callback.on_trial_result(trial=trial, result={"count": 1, "training_iteration": 1})
    for trial in both:
        trial.run_metadata.last_result = {"count": 1, "training_iteration": 1, "done": True}
        callback.on_trial_complete(trial=trial)
        trial.status = "TERMINATED"
    callback.on_step_end()
    assert panel.state.counts() == {"finished": 2} and panel.state.at_once == 2
    assert "training" in panel.state.phases


def test_a_placement_group_of_the_reader_is_removed_at_once(monkeypatch):
    removed = []
    for owner in (placement_group, ray.util):
        monkeypatch.setattr(owner, "remove_placement_group", removed.append)
    with _tune.without_lost_cpus():
        ray.util.remove_placement_group("mine")
        assert removed == ["mine"]
    assert ray.util.remove_placement_group == removed.append


def test_a_scheduler_inside_another_one_decides():
    inner = asha(max_t=9)
    outer = ResourceChangingScheduler(inner, lambda *_: None)
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=outer), None)
    assert plan.compared == ("score", "max") and plan.rungs == (1, 3, 9)
    trial = SimpleNamespace(trial_id="t", run_metadata=SimpleNamespace(last_result={"training_iteration": 9}))
    plan.note_end(trial)
    assert plan.stopped == set() and plan.ended == {"t"}


def test_which_trials_were_stopped_early_is_known_after_a_restoration(tmp_path):
    run = tune.RunConfig(name="saved", storage_path=str(tmp_path))
    plan = TunerPlan(print, {}, tune.TuneConfig(metric="score", mode="max"), run)
    plan.stopped.add("early")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "experiment_state-1.json").write_text("{}")
    plan.save_state(tmp_path / "saved")
    restored = TunerPlan(print, {}, tune.TuneConfig(), run, restored=True)
    restored.restore_state()
    assert restored.stopped == {"early"}


def test_a_sweep_of_which_only_paused_trials_are_left_says_so(panel, monkeypatch):
    monkeypatch.setattr(capacity, "QUIET_FOR", 0.0)
    over, left = (tune.experiment.Trial("none", trial_id=f"t{x}", stub=True) for x in (1, 2))
    over.status, left.status = "TERMINATED", "PAUSED"
    over.run_metadata.last_result = {"done": True}
    callback = SweepCallback()
    callback.on_step_begin(trials=[over, left])
    callback.on_step_end()
    assert panel.state.waits.startswith(
        "all trials that are left are paused, and the scheduler continues none"
    )
    assert "RunConfig(stop={'training_iteration': …})" in panel.state.waits
    left.status, callback._next_look = "PENDING", 0.0
    callback.on_step_end()
    assert panel.state.waits == ""  # it waits for CPUs, and there is no cluster to ask


COPIED = """ray::ImplicitFunc.train() (pid=1, ip=10.0.0.7)
  File "/home/me/films.py", line 41, in bad_trial
    raise DataMissing("films", 2)
DataMissing: table films has no row 2

The above exception was the direct cause of the following exception:

ray::ImplicitFunc.train() (pid=1, ip=10.0.0.7)
  File "/venv/site-packages/ray/tune/trainable/trainable.py", line 326, in train
    result = self.step()
ray.air._internal.util.StartTraceback

During handling of the above exception, another exception occurred:

ray::ImplicitFunc.train() (pid=1, ip=10.0.0.7)
  File "/venv/site-packages/ray/air/_internal/util.py", line 56, in skip_exceptions
    new_exc = copy.copy(exc).with_traceback(exc.__traceback__)
TypeError: DataMissing.__init__() missing 1 required positional argument: 'row'"""


GONE = "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
EXITED = "Worker exit detail: Worker exits unexpectedly. Worker exits with an exit code no films."


FAILURES = [
    ("ValueError: first\nFailure # 2 (occurred later)\nValueError: second", "ValueError: second", "try"),
    (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: X",
        "its process is gone: it may have crashed or been killed, and Ray doesn't know which",
        "in a Python of its own",
    ),
    (GONE + EXITED, "its process is gone: it exited: no films", "in a Python of its own"),
    (COPIED, "DataMissing: table films has no row 2", "the panel shows where"),
    ("ModuleNotFoundError: No module named 'polars'", "No module named 'polars'", "install it"),
    (f"RuntimeError: {_tune.NO_RESULT}.", "its function ended by SystemExit", "let it return"),
    (None, "no error was kept", "try the trainable in this process"),
]


@pytest.mark.parametrize("written, why, fix", FAILURES)
def test_why_a_trial_failed(tmp_path, written, why, fix):
    if written is not None:
        (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at today)\n{written}\n")
    trial = SimpleNamespace(error_file=str(tmp_path / "error.txt"), get_error=lambda: None)
    text, advice = trials.why_failed(trial)
    assert why in text and "first" not in text and fix in advice
    assert "memory" not in text  # which is said only where it is known


def test_why_a_trial_of_an_earlier_process_failed_is_in_the_storage(tmp_path):
    text = "Failure # 1 (occurred at today)\nValueError: long ago\n"
    trial = SimpleNamespace(error_file=str(tmp_path / "error.txt"), get_error=lambda: text)
    assert trials.why_failed(trial)[0] == "ValueError: long ago"
