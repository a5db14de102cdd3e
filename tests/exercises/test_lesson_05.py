"""The exercises of lesson 05: what is right, and what is said of a mistake."""

import pytest
from ray import tune

from labkit.exercises import check, lesson_05
from labkit.exercises.answers import Wrong


@pytest.mark.parametrize(
    "trials, with_choice, said",
    [
        (40, 10, "solved"),
        (8, 2, "repeats all of it"),
        (5, 5, "without a grid"),
        (30, 10, "multiply"),
        (200, 50, "multiplies nothing"),
        (40, 40, "one width for each trial"),
        (40, 5, "still there"),
        (40, ..., "not attempted"),
    ],
)
def test_count(trials, with_choice, said):
    assert said in repr(check("05-1", trials, with_choice))


class Descent(tune.Trainable):
    def setup(self, config):
        self.reset_config(config)

    def reset_config(self, config):
        self.x, self.lr = 0.0, config["lr"]
        return True

    def step(self):
        self.x -= self.lr * 2 * (self.x - 3)
        return {"loss": (self.x - 3) ** 2}

    def save_checkpoint(self, folder):
        with open(f"{folder}/x.txt", "w") as file:
            file.write(repr(self.x))

    def load_checkpoint(self, folder):
        with open(f"{folder}/x.txt") as file:
            self.x = float(file.read())


class SaysNothing(Descent):
    def reset_config(self, config):
        self.x, self.lr = 0.0, config["lr"]


class KeepsX(Descent):
    def setup(self, config):
        self.x, self.lr = 0.0, config["lr"]

    def reset_config(self, config):
        self.lr = config["lr"]
        return True


class KeepsRate(Descent):
    def setup(self, config):
        self.x, self.lr = 0.0, config["lr"]

    def reset_config(self, config):
        self.x = 0.0
        return True


class LossBefore(Descent):
    def step(self):
        loss = (self.x - 3) ** 2
        self.x -= self.lr * 2 * (self.x - 3)
        return {"loss": loss}


class ReturnsNumber(Descent):
    def step(self):
        return super().step()["loss"]


class ReadsItsConfig(Descent):
    """As in a sweep, where Tune sets `config` before it calls `reset_config`."""

    def reset_config(self, config):
        self.x = 0.0
        return True

    def step(self):
        self.x -= self.config["lr"] * 2 * (self.x - 3)
        return {"loss": (self.x - 3) ** 2}


class SavesNothing(Descent):
    def save_checkpoint(self, folder):
        return {"x": self.x}


class LoadsNothing(Descent):
    def load_checkpoint(self, folder):
        return folder


class Unfinished(Descent):
    def load_checkpoint(self, folder):
        pass


class Blank(tune.Trainable):
    def setup(self, config): ...

    def reset_config(self, config): ...

    def step(self): ...

    def save_checkpoint(self, folder): ...

    def load_checkpoint(self, folder): ...


class Results(list):
    """What a sweep returned: (configuration, loss) of each trial."""

    def __init__(self, *pairs):
        super().__init__(type("Result", (), {"config": {"lr": a}, "metrics": {"loss": b}}) for a, b in pairs)

    def get_best_result(self):
        return min(self, key=lambda result: result.metrics["loss"])


@pytest.mark.parametrize(
    "cls, said",
    [
        (Descent, "solved"),
        (ReadsItsConfig, "solved"),
        (SaysNothing, "only True"),
        (KeepsX, "something of the old trial"),
        (KeepsRate, "the old learning rate"),
        (LossBefore, "move x first"),
        (ReturnsNumber, "is expected"),
        (SavesNothing, "no file"),
        (LoadsNothing, "not the one that the saved trial"),
        (Unfinished, "load_checkpoint does nothing yet"),
        (Blank, "not attempted"),
        (Descent.step, "a class that derives"),
        (7, "a class that derives"),
    ],
)
def test_a_trainable_is_tried_here_first(cls, said, monkeypatch):
    def swept(cls, space, **_):
        return Results(*((lr, (3 * (1 - 2 * lr) ** 3) ** 2) for lr in space["lr"]["grid_search"]))

    monkeypatch.setattr(lesson_05, "run_sweep", swept)
    assert said in repr(check("05-2", cls))


@pytest.mark.parametrize(
    "rungs, left, said",
    [
        ([2, 8, 32], 1, "solved"),
        ((2, 8, 32), 1.0, "solved"),
        ([1, 4, 16, 64], 1, "grace_period"),
        ([2, 4, 8, 16, 32, 64], 1, "reduction_factor"),
        ([2, 8, 32, 128], 1, "beyond max_t"),
        ([2, 8, 32, 64], 1, "all trials end"),
        ([2, 8], 1, "the rungs are not"),
        ([2, 8, 32], 4, "one more"),
        ([2, 8, 32], 64, "all of them"),
        (3, 1, "a list is expected"),
        ([...], ..., "not attempted"),
    ],
)
def test_rungs(rungs, left, said):
    assert said in repr(check("05-3", rungs, left))


@pytest.mark.parametrize(
    "results, said",
    [
        (Results((0.01, 6.0), (0.1, 0.1), (0.5, 0.0)), "solved"),
        (Results((0.5, 0.0)), "each of the three"),
        (Results((0.01, 0.0), (0.1, 0.1), (0.5, 6.0)), "the best trial has lr=0.01"),
        (Wrong("a trial asks for 64 CPUs"), "64 CPUs"),
    ],
)
def test_a_fixed_sweep_is_judged_by_its_results(results, said, monkeypatch):
    def ran(tuner, name):
        if isinstance(results, Wrong):
            raise results
        return results

    monkeypatch.setattr(lesson_05, "run_tuner", ran)
    assert said in repr(check("05-4", lambda: "a tuner"))


def drivers(cpus, gpus, workers, worker_cpus, worker_gpus, driver_cpus):
    by_cpus = int(cpus // (workers * worker_cpus + driver_cpus))
    return by_cpus if worker_gpus == 0 else min(by_cpus, int(gpus // (workers * worker_gpus)))


def one_driver_in_all(cpus, gpus, workers, worker_cpus, worker_gpus, driver_cpus):
    return drivers(cpus - driver_cpus, gpus, workers, worker_cpus, worker_gpus, 0)


@pytest.mark.parametrize(
    "function, said",
    [
        (drivers, "solved"),
        (lambda cpus, gpus, workers, each, gpu, driver: cpus // (workers * each), "driver of each trial"),
        (lambda cpus, gpus, workers, each, gpu, driver: int(cpus // (workers + driver)), "more than one CPU"),
        (lambda cpus, gpus, workers, each, gpu, driver: cpus / (workers * each + driver), "whole trials"),
        (lambda cpus, gpus, workers, each, gpu, driver: cpus // (workers * each + driver), "needs a GPU"),
        (lambda *args: max(1, drivers(*args)), "does not fit"),
        (one_driver_in_all, "a driver of its own"),
        (lambda *args: drivers(*args[:3], max(1, args[3]), *args[4:]), "asks for 0 CPUs needs none"),
        (lambda cpus, gpus, *rest: gpus // 2 if gpus else drivers(cpus, gpus, *rest), "is 4"),
        (lambda *args: "two", "a number is expected"),
        (lambda *args: ..., "not attempted"),
    ],
)
def test_drivers_and_workers(function, said):
    assert said in repr(check("05-5", function))
