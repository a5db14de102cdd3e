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


def reported(folder, *, losses=None, last=None, name="x.txt"):
    """What trials of `descend` reported and saved: as they should, or with a mistake."""
    found = []
    for rate in (0.1, 0.25):
        xs = [3 - 3 * (1 - 2 * rate) ** step for step in range(5)]
        column = [(x - 3) ** 2 for x in (losses(xs) if losses else xs[1:])]
        place = folder / str(rate)
        place.mkdir()
        (place / name).write_text(repr(last(xs) if last else xs[4]))
        checkpoint = tune.Checkpoint.from_directory(place)
        frame = pandas.DataFrame({"loss": column})
        found.append(SimpleNamespace(metrics_dataframe=frame, checkpoint=checkpoint))
    return found


@pytest.mark.parametrize(
    "mistake, said",
    [
        ({}, "solved"),
        ({"losses": lambda xs: xs[-1:]}, "in a trial of 4 steps it reports once"),
        ({"losses": lambda xs: xs[:-1]}, "move x first"),
        ({"losses": lambda xs: xs[-1:] * 4}, "that is the loss of the last step"),
        ({"name": "y.txt"}, "no file x.txt"),
        ({"last": lambda xs: xs[3]}, "that is x before the last step"),
    ],
)
def test_a_function_that_reports_on_the_way(mistake, said, monkeypatch, tmp_path):
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: reported(tmp_path, **mistake))
    assert said in repr(check("05-6", lambda config: config["steps"]))


def test_reports_without_a_checkpoint(monkeypatch, tmp_path):
    without = [SimpleNamespace(**(vars(one) | {"checkpoint": None})) for one in reported(tmp_path)]
    monkeypatch.setattr(lesson_05, "run_tuner", lambda tuner, name: without)
    assert "no checkpoint" in repr(check("05-6", lambda config: config["steps"]))


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
