"""The exercises of lesson 05: what is said of a mistake."""

from types import SimpleNamespace

import pandas
import pytest
from ray import tune

from labkit.exercises import check, registry
from verdicts import verdicts

lesson_05 = registry.load("05")


class Results(list):
    """What a sweep returned: (configuration, loss) of each trial."""

    def __init__(self, *pairs):
        super().__init__(type("Result", (), {"config": {"lr": a}, "metrics": {"loss": b}}) for a, b in pairs)

    def get_best_result(self):
        return min(self, key=lambda result: result.metrics["loss"])


@pytest.mark.parametrize(
    "results, said",
    [
        (Results((0.01, 6.0), (0.1, 0.1), (0.5, 0.0)), "solved"),
        (Results((0.5, 0.0)), "each of the three"),
        (Results((0.01, 0.0), (0.1, 0.1), (0.5, 6.0)), "the best trial has lr=0.01"),
    ],
)
def test_a_fixed_sweep_is_judged_by_its_results(results, said, monkeypatch):
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: results)
    assert said in repr(check("05-4", lambda: "a tuner"))


RATES = [0.001 * 2**place for place in range(9)]  # to 0.256: each trial has its own
STOPPED = [9, 1, 1, 3, 1, 1, 3, 1, 9]  # steps of each trial


class Sweep(Results):
    """What trials of `descend` reported and saved: as they should, or with a mistake."""

    def __init__(self, folder, rates=RATES, steps=STOPPED, losses=None, last=None, name="x.txt", best=min):
        super().__init__()
        self.best = best
        for rate, count in zip(rates, steps, strict=True):
            xs = [3 - 3 * (1 - 2 * rate) ** step for step in range(10)]
            (place := folder / f"trial{len(self)}").mkdir()
            (place / (name or "x.txt")).write_text(repr(last(xs, count) if last else xs[count]))
            column = [(x - 3) ** 2 for x in (losses(xs) if losses else xs[1:])[:count]]
            checkpoint = tune.Checkpoint.from_directory(place) if name else None
            frame = pandas.DataFrame({"loss": column})
            found = {"config": {"lr": rate}, "metrics": {"loss": column[-1]}, "metrics_dataframe": frame}
            self.append(SimpleNamespace(**found, checkpoint=checkpoint))

    def get_best_result(self):
        return self.best(self, key=lambda result: result.metrics["loss"])


@pytest.mark.parametrize(
    "mistake, said",
    [
        ({}, "solved"),
        ({"rates": RATES[:3], "steps": STOPPED[:3]}, "has 3 trials, and nine are expected"),
        ({"rates": [0.1] * 9}, "the trials share learning rates"),
        ({"rates": [rate * 10 for rate in RATES]}, "between 0.01 and 2.6"),
        ({"rates": [0.2 + rate for rate in RATES]}, "`uniform` hardly ever"),
        ({"losses": lambda xs: xs}, "move x first"),
        ({"losses": lambda xs: xs[-1:] * 9}, "the last step: report inside the loop"),
        ({"name": None}, "no checkpoint"),
        ({"name": "y.txt"}, "no file x.txt"),
        ({"last": lambda xs, count: xs[count - 1]}, "that is x before the last step"),
        ({"steps": [9] * 9}, "is there a scheduler?"),
        ({"steps": [9, 2, 2, 4, 2, 2, 4, 2, 9]}, "ended after [2, 4, 9] steps"),
        ({"steps": [1, 1, 1, 3, 1, 1, 3, 1, 1]}, "no trial made nine steps"),
        ({"best": max}, "another trial has less: metric and mode"),
    ],
)
def test_a_sweep_of_your_own(mistake, said, monkeypatch, tmp_path):
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: Sweep(tmp_path, **mistake))
    assert said in repr(check("05-6", lambda config: config["steps"], lambda folder: "a tuner"))


SAID = {
    "05-1": [
        (40, 10, "solved"),
        (8, 2, "repeats all of it"),
        (40, 40, "one width for each trial"),
    ],
    "05-3": [
        ((2, 8, 32), 1.0, "solved"),
        ([1, 4, 16, 64], 1, "grace_period"),
        ([2, 4, 8, 16, 32, 64], 1, "reduction_factor"),
        ([2, 8, 32, 128], 1, "beyond max_t"),
        ([2, 8, 32], 4, "one more"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
