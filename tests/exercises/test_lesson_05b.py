"""The exercises of lesson 05b: what is said of a mistake."""

from types import SimpleNamespace

import pytest
import torch
from ray import tune

from course.exercises import registry
from course.exercises.answers import Wrong
from labkit.tune.trials import TunerPlan
from verdicts import checks

lesson_05b = registry.load("05b")


RESET = '        self.x, self.lr = 0.0, config["lr"]\n'
SETUP = {"        self.reset_config(config)\n": RESET}


def swept(cls, space, **_):
    """What the sweep of a right answer returns."""
    losses = [(3 * (1 - 2 * lr) ** 3) ** 2 for lr in space["lr"]["grid_search"]]
    return [SimpleNamespace(metrics={"loss": loss}) for loss in losses]


@pytest.fixture(autouse=True)
def engine(monkeypatch, trial):
    """Tune is replaced: a trial runs here."""

    def run(tuner, name):
        plan = TunerPlan.from_tuner(tuner)
        try:
            trial(plan.trainable, {"lr": plan.space["lr"]["grid_search"][0], "steps": plan.space["steps"]})
        except TypeError as error:  # as the real one does
            raise Wrong(str(error)) from error

    monkeypatch.setattr(lesson_05b, "run_sweep", swept)
    monkeypatch.setattr(lesson_05b, "run_tuner", run)


class Blank(tune.Trainable):
    def setup(self, config): ...

    def reset_config(self, config): ...

    def step(self): ...

    def save_checkpoint(self, place): ...

    def load_checkpoint(self, place): ...


class Digits(tune.Trainable):
    def setup(self, config, train, valid):
        self.rows = train
        self.reset_config(config)

    def reset_config(self, config):
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=config["lr"], momentum=0.5)
        return True

    def step(self):
        self.model(self.rows).sum().backward()
        self.optimizer.step()
        return {}

    def save_checkpoint(self, place):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, f"{place}/state.pt")

    def load_checkpoint(self, place):
        state = torch.load(f"{place}/state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class Open(Digits):
    def load_checkpoint(self, place): ...


LOAD = "super().load_checkpoint(place)"
STATE = 'torch.load(f"{place}/state.pt", weights_only=True)'


FROM = 'range(state["steps"], '
LOOP, REPORT = f"    for step in {FROM}", "            tune.report"
START = '{"x": 0.0, "velocity": 0.0, "steps": 0}'


ANSWERS = {
    "05b-1": [
        ({'- config["lr"]': '+ -config["lr"]'}, "solved"),
        ({"checkpoint := tune.get_checkpoint()": "checkpoint := None"}, "starts from scratch"),
        ({LOOP: f'    state["velocity"] = 0.0\n{LOOP}'}, "the velocity didn't"),
        ({FROM: "range("}, "it makes 7 steps instead of 5: x resumed, and the count"),
        (
            {FROM: 'range(state["steps"] and state["steps"] + 1, '},
            "it makes 4 steps instead of 5: the count of steps resumed, and is off",
        ),
        (
            {FROM: 'range(state["steps"] and state["steps"] - 1, '},
            "it makes 6 steps instead of 5: the count of steps resumed, and is off",
        ),
        ({'{"loss"': '{"done": 1, "loss"'}, "Tune hears of 1 of 5 steps"),
        ({'config["steps"])': "1)"}, "If you report a metric `done`"),
        (
            {
                LOOP: f'    first, state = state["steps"], {START}\n    for step in range(',
                REPORT: f"            if step >= first: {REPORT.strip()}",
            },
            "computes the steps before it once more",
        ),
        (
            {"tune.Checkpoint.from_directory(place)": "'/tmp/x'"},
            "'/tmp/x': that is a path and not a tune.Checkpoint",
        ),
        ({REPORT: "            dict"}, "Tune hears of 0 of 5 steps"),
        ({"max_failures=1": ""}, "isn't started again"),
        ({"max_failures=1": "max_failures=-1"}, "started forever"),
        ({"tune.FailureConfig(max_failures=1)": "1"}, "a FailureConfig is expected"),
    ],
    "05-2": [
        # Tune sets it before
        ({"self.x -= self.lr": 'self.x -= self.config["lr"]'}, "solved"),
        ({"return True": "return None"}, "only True"),
        (
            {f"{RESET}        return": '        self.lr = config["lr"]\n        return', **SETUP},
            "something of the old trial",
        ),
        (
            {f"{RESET}        return": "        self.x = 0.0\n        return", **SETUP},
            "the old learning rate",
        ),
        (
            {
                "        self.x -= self.lr": "        loss = (self.x - 3) ** 2\n        self.x -= self.lr",
                "(self.x - 3) ** 2}": "loss}",
            },
            "move x first",
        ),
        ({'Path(place, "x.txt").write_text(repr(self.x))': "return {}"}, "no file"),
        ({"self.x = float(Path(": "print(Path("}, "the saved trial's next step"),
        (
            {
                "repr(self.x)": 'f"{self.x!r} {self.lr!r}"',
                'self.x = float(Path(place, "x.txt").read_text())': (
                    'self.x, self.lr = map(float, Path(place, "x.txt").read_text().split())'
                ),
            },
            "brings back the saved trial's learning rate",
        ),
        ({'self.x = float(Path(place, "x.txt").read_text())': "..."}, "load_checkpoint does nothing yet"),
        ([Blank], "not attempted"),
        ([Digits.step], "a class derived"),
    ],
    "05b-2": [
        ({'group["lr"] = self.config["lr"]': "pass"}, "the optimizer's state brought it back"),
        ({LOAD: f'self.model.load_state_dict({STATE}["model"])'}, "no momentum"),
        ({LOAD: f'self.optimizer.load_state_dict({STATE}["optimizer"])'}, "the weights of the checkpoint"),
        ([Open, "train", "valid"], "not attempted"),
        ([Open.step, "train", "valid"], "a class is expected"),
    ],
    "05-5": [
        ({" + driver_cpus": ""}, "driver of each trial"),
        ({" * worker_cpus": ""}, "more than one CPU"),
        ({"int(cpus // ": "(cpus / "}, "whole trials"),
        ({"worker_gpus == 0": "True"}, "needs a GPU"),
        ({"int(cpus // ": "max(1, cpus // "}, "does not fit"),
        ({"(cpus // ": "((cpus - driver_cpus) // ", " + driver_cpus": ""}, "a driver of its own"),
        ({"* worker_cpus": "* max(1, worker_cpus)"}, "asks for 0 CPUs needs none"),
        ({"worker_gpus == 0": "0 in (gpus, worker_gpus)"}, "there is none"),
        ({"= int(": "= float("}, "an int is expected"),
        ({"min(by_cpus, int(gpus // (workers * worker_gpus)))": "gpus // 2"}, "is 4"),
    ],
}


test_what_a_check_says = checks(ANSWERS, Digits=Digits, train=torch.ones(4, 2), valid="rows")
