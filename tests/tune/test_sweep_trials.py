"""What is read of Tune's trials: their numbers, ends and failures."""

import threading
from types import SimpleNamespace

import pytest
import ray
from ray import tune
from ray.air.execution.resources import placement_group
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    ResourceChangingScheduler,
)

from labkit import _tune
from labkit.cluster import capacity
from labkit.tune import trials
from labkit.tune.panel import SweepCallback, SweepPanel
from labkit.tune.trials import TunerPlan


def test_a_restored_sweep_keeps_the_numbers_of_its_trials_and_counts_changed_configurations(monkeypatch):
    panel = SweepPanel("killed")
    panel.plan = TunerPlan.from_tuner(tune.Tuner(print, tune_config=tune.TuneConfig(metric="count")))
    panel.state = panel.new_state()
    monkeypatch.setattr(SweepPanel, "current", lambda: panel)

    def restored(x, status):
        done = status == "TERMINATED"
        data = SimpleNamespace(last_result={"count": x, "training_iteration": 1, "done": done})
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
        trial.run_metadata.last_result = {"count": 1, "training_iteration": 1, "done": True}
        callback.on_trial_complete(trial=trial)
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
    assert _tune.names_without_metric(message) == ["loss", "score"]
    assert _tune.names_without_metric("CUDA error. Result: {'loss': 2}") is None


def test_only_tunes_own_placement_groups_are_removed_later(monkeypatch):
    module, removed = placement_group, []
    for owner in (module, ray.util):
        monkeypatch.setattr(owner, "remove_placement_group", removed.append)

    class Group:
        def wait(self, seconds):
            asked.set()

    with _tune.without_lost_cpus():
        asked, groups = threading.Event(), [Group() for _ in range(3)]
        ray.util.remove_placement_group(groups[0])  # the reader's
        assert removed == groups[:1] and not asked.is_set()
        for call, group in zip(("ray.util.remove", "remove"), groups[1:], strict=True):
            asked.clear()
            exec(f"{call}_placement_group(group)", vars(module), {"group": group})
            assert asked.wait(10)
    assert removed[0] is groups[0] and {*removed} == {*groups}
    assert ray.util.remove_placement_group == module.remove_placement_group


class Controller:
    """Ends trials as Tune's controller does for a scheduler."""

    def __init__(self, plan):
        self.plan = plan
        self.search_alg = SimpleNamespace(searcher=SimpleNamespace(on_pause=print, on_unpause=print))

    def stop_trial(self, trial):
        self.plan.note_end(trial)
        trial.status = "TERMINATED"
        self.plan.options.scheduler.on_trial_remove(self, trial)


def paused(x):
    trial = tune.experiment.Trial("none", trial_id=f"t{x}", stub=True)
    trial.status = "PENDING"
    return trial


def run_in_bands(scheduler, trials, iterations):
    """Report for all trials, one iteration after the other, as far as the scheduler lets them go on."""
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=scheduler), None)
    controller = Controller(plan)
    with plan.noting_stops():
        for trial in trials:
            scheduler.on_trial_add(controller, trial)
        for time in range(1, iterations + 1):
            for x, trial in enumerate(trials):
                waits = (
                    trial.status == "PAUSED" and trial not in bracket_of(scheduler, trial).trials_to_unpause
                )
                if trial.status == "TERMINATED" or waits:
                    continue
                trial.status = "RUNNING"
                result = {"training_iteration": time, "score": x * time, "done": False}
                decision = scheduler.on_trial_result(controller, trial, result)
                trial.run_metadata.last_result = result | {"done": decision == "STOP"}
                if decision == "STOP":
                    controller.stop_trial(trial)
                elif decision == "PAUSE":
                    trial.status = "PAUSED"
    return plan


def bracket_of(scheduler, trial):
    return scheduler._trial_info[trial][0]


@pytest.mark.parametrize("kind", [HyperBandScheduler, HyperBandForBOHB])
@pytest.mark.parametrize("longest", [9, 10])  # of 10, its brackets make 9
def test_trials_that_hyperband_ends_while_they_are_paused_are_stopped_early(kind, longest, monkeypatch):
    scheduler = kind(metric="score", mode="max", max_t=longest, reduction_factor=3)
    monkeypatch.setattr(scheduler, "_get_n0", lambda s: 9)  # one bracket, with two halvings
    monkeypatch.setattr(scheduler, "_get_r0", lambda s: 1)
    monkeypatch.setattr(scheduler, "_create_bracket", lambda s: type(scheduler)._create_bracket(scheduler, 2))
    trials = [paused(x) for x in range(9)]
    plan = run_in_bands(scheduler, trials, longest)
    ended = {trial.trial_id: trial.run_metadata.last_result["training_iteration"] for trial in trials}
    early = {name for name, time in ended.items() if time < 9}
    assert plan.stopped == early and len(early) == 8
    assert {trial.status for trial in trials} == {"TERMINATED"}


def test_a_scheduler_inside_another_one_decides():
    inner = asha(max_t=9)
    outer = ResourceChangingScheduler(inner, lambda *_: None)
    plan = TunerPlan(print, {}, tune.TuneConfig(scheduler=outer), None)
    assert plan.compared == ("score", "max") and plan.rungs == (1, 3, 9)
    trial = SimpleNamespace(trial_id="t", run_metadata=SimpleNamespace(last_result={"training_iteration": 9}))
    plan.note_end(trial)
    assert plan.stopped == set() and plan.ended == {"t"}


def test_what_a_limit_of_the_sweep_ends_is_cut_off_and_what_was_stopped_early_stays_so(tmp_path, monkeypatch):
    run = tune.RunConfig(name="saved", storage_path=str(tmp_path))
    tuner = tune.Tuner(print, run_config=run, tune_config=tune.TuneConfig(metric="score", mode="max"))
    panel = SweepPanel("limit")
    panel.plan = plan = TunerPlan.from_tuner(tuner)
    panel.state = panel.new_state()
    monkeypatch.setattr(SweepPanel, "current", lambda: panel)

    def trial(id, *, done):
        result = {"score": 1, "training_iteration": 2, "done": done}
        about = {"trial_id": id, "experiment_tag": "0", "config": {}, "status": "TERMINATED"}
        return SimpleNamespace(**about, run_metadata=SimpleNamespace(last_result=result))

    whole, limited, early = (
        trial("whole", done=True),
        trial("limited", done=False),
        trial("early", done=False),
    )
    callback = SweepCallback()
    callback.on_trial_complete(trial=whole)
    callback.on_trial_complete(trial=early)
    callback.on_step_begin(trials=[whole, limited, early])
    callback.on_step_end()
    status = {id: known.status for id, known in panel.state.trials.items()}
    assert status == {"whole": "finished", "limited": "cut off", "early": "stopped early"}
    (tmp_path / "saved").mkdir(exist_ok=True)
    (tmp_path / "saved" / "experiment_state-1.json").write_text("{}")
    plan.save_state(tmp_path / "saved")
    again = TunerPlan(print, {}, tune.TuneConfig(), run, restored=True)
    again.restore_state()
    assert again.stopped == {"early"}


def test_a_sweep_of_which_only_paused_trials_are_left_says_so(tmp_path, monkeypatch):
    panel = SweepPanel("paused")
    panel.plan = TunerPlan.from_tuner(tune.Tuner(print, tune_config=tune.TuneConfig(metric="score")))
    panel.state = panel.new_state()
    monkeypatch.setattr(SweepPanel, "current", lambda: panel)
    monkeypatch.setattr(capacity, "QUIET_FOR", 0.0)
    over, left = paused(1), paused(2)
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


@pytest.mark.parametrize(
    "written, why, fix",
    [
        ("ValueError: first\nFailure # 2 (occurred later)\nValueError: second", "ValueError: second", "try"),
        (
            "The actor died unexpectedly before finishing this task.\n\tclass_name: X",
            "its process is gone: it may have crashed or been killed, and Ray doesn't know which",
            "in a Python of its own",
        ),
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR "
            "Worker exit detail: Worker exits unexpectedly. Worker exits with an exit code no films.",
            "its process is gone: it exited: no films",
            "in a Python of its own",
        ),
        (COPIED, "DataMissing: table films has no row 2", "the panel shows where"),
        ("ModuleNotFoundError: No module named 'polars'", "No module named 'polars'", "install it"),
        (None, "no error was kept", "try the trainable in this process"),
    ],
)
def test_why_a_trial_failed(tmp_path, written, why, fix):
    if written is not None:
        (tmp_path / "error.txt").write_text(f"Failure # 1 (occurred at today)\n{written}\n")
    failure = trials.why_failed(SimpleNamespace(error_file=str(tmp_path / "error.txt")))
    assert why in failure.text and "first" not in failure.text and fix in failure.fix
    assert "memory" not in failure.text  # which is said only where it is known
