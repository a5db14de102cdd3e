"""What is read of Tune's trials: their numbers, ends and failures."""

from types import SimpleNamespace

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule

from labkit.tune import trials
from labkit.tune.panel import SweepCallback, SweepPanel
from labkit.tune.trials import TunerPlan


def test_a_restored_sweep_keeps_the_numbers_of_its_trials_and_counts_changed_configurations(monkeypatch):
    panel = SweepPanel("killed")
    panel.plan = TunerPlan.from_tuner(tune.Tuner(print, tune_config=tune.TuneConfig(metric="count")))
    panel.state = panel.new_state()
    monkeypatch.setattr(SweepPanel, "current", lambda: panel)

    def restored(x, status):
        data = SimpleNamespace(last_result={"count": x, "training_iteration": 1})
        tag = {"trial_id": f"a_{x:05}", "experiment_tag": f"{x}_x={x}"}
        return SimpleNamespace(**tag, status=status, config={"x": x}, run_metadata=data)

    callback = SweepCallback()
    known = [restored(2, "PENDING"), restored(11, "PENDING"), restored(0, "TERMINATED")]
    callback.on_step_begin(trials=known)
    callback.on_step_end()
    numbers = {trial.config["x"]: trial.number for trial in panel.state.trials.values()}
    assert numbers == {0: 0, 2: 1, 11: 2} and panel.state.counts() == {"finished": 1, "waiting": 2}
    for config in ({"x": 2}, {"x": 3}):  # as population based training does it
        known[0].config, known[0].status = config, "RUNNING"
        callback.on_trial_result(trial=known[0], result={"count": 1, "training_iteration": 2})
        callback.on_step_end()
    changed = panel.state.trials["a_00002"]
    assert (changed.changes, changed.config, changed.status) == (1, {"x": 3}, "running")


def test_trials_that_report_once_have_run(monkeypatch):
    """They are over when Tune's step ends, so none is seen running then."""
    panel = SweepPanel("short")
    panel.plan = TunerPlan.from_tuner(tune.Tuner(print, tune_config=tune.TuneConfig(metric="count")))
    panel.state = panel.new_state()
    panel.state.start("start")
    monkeypatch.setattr(SweepPanel, "current", lambda: panel)
    callback, both = SweepCallback(), [
        SimpleNamespace(
            trial_id=f"t{x}", experiment_tag=f"{x}_x={x}", status="RUNNING", config={"x": x},
            run_metadata=SimpleNamespace(last_result={}),
        )
        for x in range(2)
    ]  # fmt: skip
    callback.on_step_begin(trials=both)
    for trial in both:
        callback.on_trial_result(trial=trial, result={"count": 1, "training_iteration": 1})
    for trial in both:
        trial.status = "TERMINATED"
    callback.on_step_end()
    assert panel.state.counts() == {"finished": 2} and panel.state.at_once == 2
    assert "training" in panel.state.phases


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


def test_names_that_are_the_trainables_own():
    said = "Trial returned a result which did not include the specified metric(s) `a`. "
    message = said + "Result: {'score': 1, 'done': False, 'pid': 3, 'config/lr': 1, 'loss': 2}"
    assert trials.names_without_metric(message) == ["loss", "score"]
    assert trials.names_without_metric("CUDA error. Result: {'loss': 2}") is None


@pytest.mark.parametrize(
    "written, why",
    [
        ("ValueError: first\nFailure # 2 (occurred later)\nValueError: second", "ValueError: second"),
        ("The actor died unexpectedly before finishing this task.\n\tclass_name: X", "its process is gone"),
        (None, "no error was kept"),
    ],
)
def test_why_a_trial_failed(tmp_path, written, why):
    if written is not None:
        (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at today)\n{written}\n")
    said = trials.why_failed(SimpleNamespace(error_file=str(tmp_path / "error.txt")))
    assert why in said and "first" not in said
