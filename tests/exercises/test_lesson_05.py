"""The exercises of lesson 05: what is said of a mistake."""

import random
from types import SimpleNamespace

import pandas
import pytest

from course.exercises import check, registry
from labkit.tune.trials import TunerPlan
from verdicts import checks

lesson_05 = registry.load("05")


class Results(list):
    """The results of a sweep."""

    def get_best_result(self, metric="loss", mode="min"):
        best = max if mode == "max" else min
        return best(self, key=lambda result: result.metrics[metric])


def fixed(*pairs, name="lr"):
    """What a fixed sweep returned: (learning rate, loss) of each trial."""
    return Results(SimpleNamespace(config={name: rate}, metrics={"loss": loss}) for rate, loss in pairs)


FIXED = (0.01, 6.0), (0.1, 0.1), (0.5, 0.0)


FIXED_SWEEPS = [
    (fixed(*FIXED, name="learning_rate"), "solved"),
    (fixed((0.5, 0.0)), "each of the three"),
    (fixed((0.01, 0.0), (0.1, 0.1), (0.5, 6.0)), "the best trial has lr=0.01"),
]


@pytest.mark.parametrize("results, verdict", FIXED_SWEEPS)
def test_a_fixed_sweep_is_judged_by_its_results(results, verdict, monkeypatch):
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: results)
    assert verdict in repr(check("05-4", lambda: "a tuner"))


RATES = [0.001 * 2**place for place in range(9)]  # to 0.256: each trial has its own
MOST_STEPS = [9, 1, 1, 3, 1, 1, 3, 1, 9]  # of each trial


@pytest.fixture(autouse=True)
def sweep(monkeypatch, trial):
    """Tune is replaced: trials run here, one after the other, and some are stopped."""

    def result(trainable, rate, most):
        reports = trial(trainable, {"lr": rate, "steps": 9}, most)
        metrics, checkpoint = reports[-1]
        frame = pandas.DataFrame([metrics for metrics, _ in reports])
        return SimpleNamespace(
            config={"lr": rate}, metrics=metrics, metrics_dataframe=frame, checkpoint=checkpoint
        )

    def run(tuner, name):
        plan = TunerPlan.from_tuner(tuner)
        results = [result(plan.trainable, *pair) for pair in zip(RATES, MOST_STEPS, strict=True)]
        return Results(results[: plan.options.num_samples])

    monkeypatch.setattr(lesson_05, "run_tuner", run)


STEP, LOSS, STEPS = 'x -= config["lr"] * 2 * (x - 3)', "(x - 3) ** 2}", 'range(config["steps"])'
RATE, ASHA = "tune.loguniform(0.001, 1)", "ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3)"
COMPARED = 'metric="loss", mode="min"'


ANSWERS = {
    "05-1": [
        ([8, 2], "repeats all of it"),
        ([40, 40], "one width for each trial"),
    ],
    "05-3": [
        ([[1, 4, 16, 64], 1], "grace_period"),
        ([[2, 4, 8, 16, 32, 64], 1], "reduction_factor"),
        ([[2, 6, 18, 54], 1], "the factor of the lesson's own sweep"),
        ([[2, 8, 32, 128], 1], "beyond max_t"),
        ([[2, 8, 32], 4], "one more"),
    ],
    "05-6": [
        ({"num_samples=9": "num_samples=3"}, "has 3 trials, and nine are expected"),
        ({STEP: f"loss = (x - 3) ** 2; {STEP}", LOSS: "loss}"}, "move x first"),
        ({LOSS: '(3 * (1 - 2 * config["lr"]) ** 9) ** 2}'}, "the last step: report inside the loop"),
        ({", checkpoint=tune.Checkpoint.from_directory(place)": ""}, "no checkpoint"),
        ({"x.txt": "y.txt"}, "no file x.txt"),
        ({STEP: f"before = x; {STEP}", "repr(x)": "repr(before)"}, "that is x before the last step"),
        ({"repr(x)": "str(round(x))"}, "in the last checkpoint, x is"),
        ({"repr(x)": "str(round(x, 2))"}, "solved"),
        ({'"loss":': '"error":'}, "the trials report 'error', and 'loss' is asked for"),
        ({STEPS: "range(2)"}, "ended after [1, 2] steps"),
        ({STEPS: "range(3)"}, "no trial made nine steps"),
        ({'"min"': '"max"'}, "another trial has less: metric and mode"),
        ({RATE: "tune.sample_from(lambda config: 10 ** random.uniform(-3, 0))"}, "solved"),
        ({RATE: "tune.qloguniform(0.001, 1, 0.001)"}, "solved"),
        ({RATE: "tune.uniform(0.001, 1)"}, "the learning rate is drawn by `uniform`"),
        ({RATE: "tune.uniform(0.001, 0.01)"}, "between 0.001 and 0.01, not 0.001 and 1"),
        ({RATE: "tune.loguniform(0.001, 0.1)"}, "between 0.001 and 0.1, not 0.001 and 1"),
        ({RATE: "tune.sample_from(lambda config: 10 ** random.uniform(-3, 1))"}, "of 600 learning rates"),
        ({RATE: "tune.quniform(0.001, 1, 0.001)"}, "of 600 learning rates drawn,"),
        ({RATE: "tune.grid_search([0.01, 0.1])"}, "is a `grid_search`"),
        ({RATE: "tune.choice([0.01, 0.1])"}, "`choice` draws one of 2 values"),
        ({RATE: "[0.01, 0.1]"}, "the learning rate [0.01, 0.1]"),
        ({RATE: "0.1"}, "the learning rate 0.1; none is drawn"),
        ({RATE: "None"}, "no 'lr'"),
        ({RATE: "..."}, "not attempted"),
        ({"max_t=9, ": ""}, "solved"),
        ({COMPARED + ", ": "", "_factor=3": f"_factor=3, {COMPARED}"}, "solved"),
        ({"scheduler=asha": "scheduler=None"}, "is there a scheduler?"),
        ({ASHA: "tune.schedulers.HyperBandScheduler()"}, "the scheduler is HyperBandScheduler"),
        ({"grace_period=1": "grace_period=3"}, "the first rung is after 3 steps"),
        ({"_factor=3": "_factor=4"}, "the factor is 4: one trial in 4"),
        ({"max_t=9": "max_t=1"}, "what are max_t and"),
        ({"storage_path=folder": ""}, "ray_results, and not below `folder`"),
        ({'"steps": 9': '"steps": 27'}, "its trials get 27 as 'steps'"),
    ],
}


test_what_a_check_says = checks(ANSWERS, random=random)
