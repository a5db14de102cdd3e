"""Real sweeps and their panel: counts, failures, what is never reported, interrupts."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.air.execution import PlacementGroupResourceManager, ResourceRequest
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler
from ray.tune.search.optuna import OptunaSearch

from labkit import _tune, runs
from labkit.__main__ import main
from labkit.cluster import capacity
from labkit.errors import LabError, RunFailed, RunStopped
from labkit.panel.reporters import NullReporter
from labkit.tune import SweepPanel
from labkit.tune.trials import TunerPlan
from labs import held_cpus, interrupt_when, shown, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/local/forkserver/", "labkit/panel/", "labkit/worker/", "labkit/tune/"),
    pytest.mark.fault,
]


LAB = {}  # one node


def climb(config):
    """Three reports; what goes wrong depends on x."""
    for step in range(config.get("steps", 3)):
        if config["x"] == "raises":
            raise ValueError("this one is bad")
        if config["x"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(config.get("seconds", 0.0))
        tune.report({"score": config["x"] * (step + 1)})


def train(config):
    """Forty steps of 30 ms, since its rows come late."""
    import torch
    from torch.utils.data import DataLoader

    class Rows:
        def __len__(self):
            return 40

        def __getitem__(self, row):
            time.sleep(0.03)
            return torch.ones(8)

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Rows()):
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"score": loss.item()}


@pytest.fixture
def panel(home):
    return SweepPanel("sweep", reporter=NullReporter(), dataset="none")


@pytest.fixture
def sweep(lab, home, panel):
    """Run a sweep under the panel; its tuner and its results are kept, also if the panel then raises."""

    def sweep(trainable, space, *, metric="score", callbacks=None, stop=None, **options):
        sweep.tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(**{"metric": metric, "mode": "max", "reuse_actors": True, **options}),
            run_config=tune.RunConfig(storage_path=str(home / "runs"), callbacks=callbacks, stop=stop),
        )
        with panel.watch(sweep.tuner):
            sweep.results = sweep.tuner.fit()
        return sweep.results

    return sweep


@pytest.mark.each_change
def test_a_grid_of_four_twice(sweep, panel, capfd):
    grid = {"x": tune.grid_search([1, 3]), "y": tune.grid_search([10, 20]), "z": tune.uniform(0, 1)}
    assert len(sweep(climb, grid, num_samples=2, max_concurrent_trials=2)) == 8
    state = panel.state
    assert 1 <= state.at_once <= 2
    assert (state.total, len(state.trials), state.best.value) == (8, 8, 9)
    assert (state.status, dict(state.counts())) == ("finished", {"finished": 8})
    assert len({t.config["z"] for t in state.trials.values()}) == 8
    record = runs.latest("sweep")
    assert (record.engine, record.state, record.metrics) == ("Ray Tune", "finished", {"score": 9})
    assert len(record.extra["trials"]) == 8 and record.config["x"] == 3
    assert sum(record.seconds.values()) == pytest.approx(record.seconds_total)
    listed = dict(panel.files())
    assert listed["results and checkpoints"] == sweep.results.experiment_path
    assert listed["results and checkpoints"].endswith(panel.run_id)  # the sweep had no name
    output = capfd.readouterr()
    assert "Trial" not in output.out + output.err  # Tune's own tables are off


def test_the_others_go_on_where_some_fail(sweep, panel):
    results = sweep(climb, {"x": tune.grid_search([1, "raises", "killed", 2])})
    assert (len(results), results.num_errors) == (4, 2)
    state = panel.state
    by_x = {trial.config["x"]: trial for trial in state.trials.values()}
    assert [by_x[x].status for x in (1, 2, "raises", "killed")] == ["finished"] * 2 + ["failed"] * 2
    texts = {failure.rank: failure.text for failure in state.failures}
    assert by_x["raises"].why == "ValueError: this one is bad"
    assert 'raise ValueError("this one is bad")' in texts[by_x["raises"].number]
    assert "site-packages" not in texts[by_x["raises"].number]
    assert "its process is gone" in by_x["killed"].why
    assert state.status == "finished"
    assert runs.latest("sweep").extra["counts"] == {"finished": 2, "failed": 2}


def test_a_sweep_of_which_nothing_is_left_and_a_metric_that_is_never_reported(sweep, panel):
    with pytest.raises(RunFailed, match="every one of its 2 trials failed.*this one is bad"):
        sweep(climb, {"x": tune.grid_search(["raises", "raises"])})
    # The reader has the results all the same.
    assert panel.state.status == "failed" and len(sweep.results) == 2
    with pytest.raises(LabError, match="'skore'") as refused:
        sweep(climb, {"x": tune.grid_search([1, 2])}, metric="skore")
    assert "they report 'score'" in refused.value.fact
    assert set(panel.state.counts()) <= {"cut off"}


def nested(config):
    for epoch in range(10, 91, 10):
        tune.report({"val": {"score": config["scale"](epoch)}, "epoch": epoch})


def double(x):
    return 2 * x


def test_a_nested_metric_rungs_in_epochs_and_a_grid_of_functions(sweep, panel):
    grid = {"scale": tune.grid_search([double, abs, int.__neg__]), "x": 1}
    asha = ASHAScheduler(time_attr="epoch", max_t=90, grace_period=10, reduction_factor=3)
    results = sweep(nested, grid, metric="val/score", scheduler=asha, max_concurrent_trials=1)
    state, record = panel.state, runs.latest("sweep")
    assert state.best.config["scale"] == "double" and state.best.value == 180
    assert state.best.curve[-1] == (9, 90, 180.0) and state.warning == ""
    assert (record.config, record.metrics) == ({"scale": "double", "x": 1}, {"val/score": 180.0})
    early = sum(result.metrics["training_iteration"] < 9 for result in results)
    assert state.counts()["stopped early"] == early > 0
    assert results.get_best_result().config["scale"].__name__ == "double"


def test_a_time_that_no_result_has_is_told(sweep, panel):
    asha = ASHAScheduler(time_attr="epochs", max_t=9)
    sweep(climb, {"x": tune.grid_search([1, 2])}, scheduler=asha)
    warning = panel.state.warning
    assert "no result has 'epochs', the time_attr of" in warning and "results have score" in warning
    assert warning in shown(panel).notes


def odd(config):
    for epoch in range(3):
        more = {"counts": {"training_iteration": 99 + epoch * 2}, "nan": {"score": math.nan}}
        tune.report({"score": epoch, **more[config["what"]]})


def test_a_sweep_says_what_its_trials_have_reported(sweep, panel):
    sweep(odd, {"what": tune.grid_search(["counts", "nan"])})
    # The names are in no dict that is written out in report().
    replaced, not_finite = shown(panel).notes
    assert "the 'training_iteration' that trials report replaces" in replaced
    assert "trial 1 reported score=nan" in not_finite


def test_sweeps_without_a_name_keep_apart_and_the_configuration_is_the_readers(lab, home):
    """Tune names a sweep after its second."""
    run = tune.RunConfig(storage_path=str(home / "unnamed"))
    tuners = [tune.Tuner(climb, param_space={"x": tune.grid_search([1])}, run_config=run) for _ in "ab"]
    paths = set()
    for tuner in tuners:
        with SweepPanel("sweep", reporter=NullReporter()).watch(tuner):
            paths.add(tuner.fit().experiment_path)
        assert tuner._local_tuner._run_config.callbacks is None and run.name is None
    assert len(paths) == 2 == len(list((home / "unnamed").iterdir()))
    assert all(tune.Tuner.can_restore(path) for path in paths)


ENDLESS = {"x": tune.grid_search(list(range(8))), "steps": 1000, "seconds": 1}


@pytest.mark.each_change
def test_an_interrupt_ends_the_sweep_and_is_told(sweep, panel, capfd):
    interrupt_when(lambda: panel.state.counts()["running"])
    with pytest.raises(RunStopped, match="stopped by you"):
        sweep(climb, ENDLESS)
    output = capfd.readouterr()
    assert "Failed to fetch metrics" not in output.out + output.err  # of trials that never reported
    state = panel.state
    assert state.status == "stopped" and set(state.counts()) == {"cut off"}
    assert runs.latest("sweep", state="stopped").error is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Interrupting(tune.Callback):
    """When Tune listens, and its loop hasn't begun."""

    def setup(self, **_):
        os.kill(os.getpid(), signal.SIGINT)


class InterruptingEarly(OptunaSearch):
    """Before Tune listens, where the exception gets lost, as it does in the middle of an import."""

    def set_search_properties(self, *args, **info):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            pass
        return super().set_search_properties(*args, **info)


@pytest.mark.parametrize("moment", ["early", "late"])
def test_an_interrupt_before_the_first_trial_is_not_lost(sweep, panel, moment):
    options = {"callbacks": [Interrupting()]}
    if moment == "early":
        options = {"search_alg": InterruptingEarly(), "num_samples": 8}
    with pytest.raises(RunStopped, match="no trial yet: start it again"):
        sweep(climb, {"x": tune.uniform(0, 1), "steps": 1000, "seconds": 1}, **options)
    assert panel.state.status == "stopped"


def test_a_state_that_cannot_be_kept_does_not_cost_the_sweep(sweep, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(TunerPlan, "save_state", full)
    with pytest.warns(UserWarning, match="or keep its state.*No space left"):
        results = sweep(climb, {"x": tune.grid_search([1, 2])})
    assert [len(result.metrics_dataframe) for result in results] == [3, 3]


def test_a_request_that_tune_cancels_at_once_costs_no_cpu(lab):
    for _ in range(60):
        with _tune.without_lost_cpus():
            manager, request = PlacementGroupResourceManager(), ResourceRequest([{"CPU": 0.01}])
            manager.request_resources(request)
            manager.cancel_resource_request(request)
    until(lambda: ray.available_resources().get("CPU") == lab.cpus, seconds=60)


class Curve(tune.Trainable):
    def setup(self, config):
        self.steps = 0

    def step(self):
        self.steps += 1
        return {"score": self.config["x"] * self.steps}

    def save_checkpoint(self, folder):
        Path(folder, "steps").write_text(str(self.steps))

    def load_checkpoint(self, folder):
        self.steps = int(Path(folder, "steps").read_text())


def test_trials_that_hyperband_ends_while_they_are_paused_are_stopped_early(sweep, panel):
    scheduler = HyperBandScheduler(max_t=9, reduction_factor=3)
    grid = {"x": tune.grid_search([1, 2, 3, 4, 5, 6, 7, 8, 9])}
    # Without `stop`, HyperBand can leave a trial paused forever.
    stop = {"training_iteration": 9}
    results = sweep(Curve, grid, scheduler=scheduler, reuse_actors=False, stop=stop)
    early = {result.config["x"] for result in results if result.metrics["training_iteration"] < 9}
    trials_of = panel.state.trials.values()
    assert {trial.config["x"] for trial in trials_of if trial.status == "stopped early"} == early
    counts = {"finished": 9 - len(early), "stopped early": len(early)}
    assert early and dict(panel.state.counts()) == runs.latest("sweep").extra["counts"] == counts


def test_a_limit_of_the_whole_sweep_cuts_trials_off(sweep, panel):
    sweep(climb, {"x": tune.grid_search([1, 2]), "steps": 1000, "seconds": 0.1}, time_budget_s=4)
    assert dict(panel.state.counts()) == {"cut off": 2}


def ends_by_itself(config):
    if config["how"] == "exit":
        sys.exit("there is no data set called films")
    if config["how"] == "status":
        os._exit(3)
    if config["how"] == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    raise DataMissing("films", 2)


class DataMissing(Exception):
    """Can be pickled, and not unpickled."""

    def __init__(self, table, row):
        super().__init__(f"table {table} has no row {row}")


def raises_a_group(config):
    raise ExceptionGroup("two files", [DataMissing("films", 2), ValueError("x")])


def test_an_exception_that_ends_the_whole_sweep_keeps_its_message(sweep, panel):
    with pytest.raises(RunFailed) as failed:
        sweep(raises_a_group, {"x": tune.grid_search([1, 2])})
    assert "DataMissing: table films has no row 2" in failed.value.fact + panel.state.failures[-1].text
    assert "raise RuntimeError(str(error)) from None" in failed.value.fix


class EndsInSetup(tune.Trainable):
    def setup(self, config):
        ends_by_itself(config)


@pytest.mark.parametrize("trainable", [ends_by_itself, EndsInSetup])
def test_a_trial_that_ends_by_itself_says_how(sweep, panel, trainable, capfd):
    with pytest.raises(RunFailed) as failed:
        sweep(trainable, {"how": tune.grid_search(["exit", "status", "crash", "odd"])})
    why = {trial.config["how"]: trial.why for trial in panel.state.trials.values()}
    assert why["status"] == "its process is gone: it exited with status 3"
    assert why["crash"] == "its process is gone: signal 11 (SIGSEGV) ended it"
    assert why["odd"].endswith("DataMissing: table films has no row 2")
    assert why["exit"].endswith("there is no data set called films")
    assert "memory" not in str(failed.value) + str(why)
    output = capfd.readouterr()
    assert "A worker died" not in output.out + output.err


def wait_inside(config):
    """A trial that runs, and waits for more, as one does that trains with workers."""
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    while not group.wait(1):
        pass
    ray.util.remove_placement_group(group)
    tune.report({"score": 1})


@pytest.mark.parametrize(("trainable", "own"), [(climb, 0), (wait_inside, 1)])
def test_a_sweep_that_waits_for_what_nobody_has_says_so(sweep, panel, lab, monkeypatch, trainable, own):
    monkeypatch.setattr(capacity, "QUIET_FOR", 1.0)
    with held_cpus(int(lab.cpus) - own, lambda: panel.state.waits) as said:
        assert sweep(trainable, {"x": tune.grid_search([1, 1])}, max_concurrent_trials=1).num_errors == 0
    assert said[0].startswith(f"waiting for {1 + own} CPU (0 of {lab.cpus:g} free)")
    assert shown(panel).notes == []


def test_where_the_time_of_each_trial_goes(sweep, panel, capsys):
    sweep(train, {})
    (trial,) = panel.state.trials.values()
    assert [cause.name for cause in trial.verdict.causes] == ["data"], trial.verdict.sentence
    (row,) = shown(panel).tables[0].rows
    assert "data" in row[-1][1]
    assert sweep.tuner._local_tuner.converted_trainable is train
    record = runs.latest("sweep")
    assert [trial["verdict"]["verdict"] for trial in record.extra["trials"]] == ["data"]
    assert main(["why", record.run_id]) == 0
    assert "trial 0: data: the loop spends" in capsys.readouterr().out
