"""The exercises of lesson 05: what is said of a mistake."""

import random
from types import SimpleNamespace

import pandas
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from course.exercises import check, registry
from verdicts import cases

lesson_05 = registry.load("05")


class Results(list):
    """What a sweep returned: (configuration, loss) of each trial."""

    def __init__(self, *pairs, name="lr", metric="loss"):
        self.metric = metric
        made = [SimpleNamespace(config={name: rate}, metrics={metric: loss}) for rate, loss in pairs]
        super().__init__(made)

    def get_best_result(self):
        return min(self, key=lambda result: result.metrics[self.metric])


FIXED = (0.01, 6.0), (0.1, 0.1), (0.5, 0.0)


FIXED_SWEEPS = [
    (Results(*FIXED), "solved"),
    (Results(*FIXED, name="learning_rate"), "solved"),
    (Results(*FIXED, metric="lost"), "solved"),
    (Results((0.5, 0.0)), "each of the three"),
    (Results((0.01, 0.0), (0.1, 0.1), (0.5, 6.0)), "the best trial has lr=0.01"),
]


@pytest.mark.parametrize("results, verdict", FIXED_SWEEPS)
def test_a_fixed_sweep_is_judged_by_its_results(results, verdict, monkeypatch):
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: results)
    assert verdict in repr(check("05-4", lambda: "a tuner"))


def rungs(max_t, grace_period, reduction_factor, **compared):
    options = {"max_t": max_t, "grace_period": grace_period, "reduction_factor": reduction_factor}
    return ASHAScheduler(**options, **compared)


LR, ASHA = tune.loguniform(0.001, 1), rungs(9, 1, 3)
RATES = [0.001 * 2**place for place in range(9)]  # to 0.256: each trial has its own
STOPPED = [9, 1, 1, 3, 1, 1, 3, 1, 9]  # steps of each trial


class Sweep(Results):
    """What trials of `descend` reported and saved: as they should, or with a mistake."""

    def __init__(self, folder, rates=RATES, steps=STOPPED, losses=None, last=None, **more):
        super().__init__(metric=more.get("metric", "loss"))
        name, self.best = more.get("name", "x.txt"), more.get("best", min)
        for rate, count in zip(rates, steps, strict=True):
            xs = [3 - 3 * (1 - 2 * rate) ** step for step in range(10)]
            (place := folder / f"trial{len(self)}").mkdir()
            (place / (name or "x.txt")).write_text(repr(last(xs, count) if last else xs[count]))
            column = [(x - 3) ** 2 for x in (losses(xs) if losses else xs[1:])[:count]]
            checkpoint = tune.Checkpoint.from_directory(place) if name else None
            frame = pandas.DataFrame({self.metric: column})
            metrics = {self.metric: column[-1], "training_iteration": count}
            trial = {"config": {"lr": rate}, "metrics": metrics, "metrics_dataframe": frame}
            self.append(SimpleNamespace(**trial, checkpoint=checkpoint))

    def get_best_result(self, metric, mode):
        assert (metric, mode) == ("loss", "min")
        return self.best(self, key=lambda result: result.metrics[self.metric])


def a_tuner(folder, lr=LR, scheduler=ASHA, steps=9, metric="loss"):
    """What `search` returns, as asked for or with a mistake."""
    options = tune.TuneConfig(metric=metric, mode=metric and "min", num_samples=9, scheduler=scheduler)
    run = tune.RunConfig(storage_path=folder)
    return tune.Tuner(
        lambda config: None, param_space={"lr": lr, "steps": steps}, tune_config=options, run_config=run
    )


MISTAKES = [
    ({}, "solved"),
    ({"rates": RATES[:3], "steps": STOPPED[:3]}, "has 3 trials, and nine are expected"),
    ({"losses": lambda xs: xs}, "move x first"),
    ({"losses": lambda xs: xs[-1:] * 9}, "the last step: report inside the loop"),
    ({"name": None}, "no checkpoint"),
    ({"name": "y.txt"}, "no file x.txt"),
    ({"last": lambda xs, count: xs[count - 1]}, "that is x before the last step"),
    ({"last": lambda xs, count: round(xs[count])}, "in the last checkpoint, x is"),
    ({"last": lambda xs, count: round(xs[count], 2)}, "solved"),
    ({"metric": "error"}, "the trials report 'error', and 'loss' is asked for"),
    ({"steps": [9] * 9}, "is there a scheduler?"),
    ({"steps": [9, 2, 2, 4, 2, 2, 4, 2, 9]}, "ended after [2, 4, 9] steps"),
    ({"steps": [1, 1, 1, 3, 1, 1, 3, 1, 1]}, "no trial made nine steps"),
    ({"best": max}, "another trial has less: metric and mode"),
]


@pytest.mark.parametrize("mistake, verdict", MISTAKES)
def test_what_the_trials_of_a_sweep_did(mistake, verdict, monkeypatch, tmp_path):
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: Sweep(tmp_path, **mistake))
    assert verdict in repr(check("05-6", lambda config: config["steps"], a_tuner))


ASKED = [
    ({"lr": tune.sample_from(lambda config: 10 ** random.uniform(-3, 0))}, "solved"),
    ({"lr": tune.qloguniform(0.001, 1, 0.001)}, "solved"),
    ({"lr": tune.uniform(0.001, 1)}, "the learning rate is drawn by `uniform`"),
    ({"lr": tune.uniform(0.001, 0.01)}, "between 0.001 and 0.01, not 0.001 and 1"),
    ({"lr": tune.loguniform(0.001, 0.1)}, "between 0.001 and 0.1, not 0.001 and 1"),
    ({"lr": tune.sample_from(lambda config: 10 ** random.uniform(-3, 1))}, "of 600 learning rates"),
    ({"lr": tune.quniform(0.001, 1, 0.001)}, "of 600 learning rates drawn,"),
    ({"lr": tune.grid_search(RATES)}, "is a `grid_search`"),
    ({"lr": tune.choice(RATES)}, "`choice` draws one of 9 values"),
    ({"lr": RATES}, "the learning rate [0.001, 0.002,"),
    ({"lr": 0.1}, "the learning rate 0.1; none is drawn"),
    ({"lr": None}, "no 'lr'"),
    ({"lr": ...}, "not attempted"),
    ({"scheduler": ASHAScheduler(grace_period=1, reduction_factor=3)}, "solved"),
    ({"scheduler": rungs(9, 1, 3, metric="loss", mode="min"), "metric": None}, "solved"),
    ({"scheduler": None}, "is there a scheduler?"),
    ({"scheduler": tune.schedulers.HyperBandScheduler()}, "the scheduler is HyperBandScheduler"),
    ({"scheduler": rungs(9, 3, 3)}, "the first rung is after 3 steps"),
    ({"scheduler": rungs(9, 1, 4)}, "the factor is 4: one trial in 4"),
    ({"scheduler": rungs(1, 1, 3)}, "what are max_t and"),
    ({"folder": None}, "ray_results, and not below `folder`"),
    ({"steps": 27}, "its trials get 27 as 'steps'"),
]


@pytest.mark.parametrize("options, verdict", ASKED)
def test_what_a_sweep_was_asked_for(options, verdict, monkeypatch, tmp_path):
    def search(folder):
        return a_tuner(**{"folder": folder, **options})

    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: Sweep(tmp_path))
    assert verdict in repr(check("05-6", lambda config: config["steps"], search))


ANSWERS = {
    "05-1": [
        ([40, 10], "solved"),
        ([8, 2], "repeats all of it"),
        ([40, 40], "one width for each trial"),
    ],
    "05-3": [
        ([(2, 8, 32), 1.0], "solved"),
        ([[1, 4, 16, 64], 1], "grace_period"),
        ([[2, 4, 8, 16, 32, 64], 1], "reduction_factor"),
        ([[2, 6, 18, 54], 1], "the factor of the lesson's own sweep"),
        ([[2, 8, 32, 128], 1], "beyond max_t"),
        ([[2, 8, 32], 4], "one more"),
    ],
}


@pytest.mark.parametrize(("exercise", "answers", "verdict"), cases(ANSWERS))
def test_what_a_check_says(exercise, answers, verdict):
    assert verdict in repr(check(exercise, *answers))
