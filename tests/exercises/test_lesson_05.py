"""The exercises of lesson 05: what is said of a mistake."""

import pytest
from ray import tune

from labkit.exercises import check, registry
from verdicts import verdicts

lesson_05 = registry.load("05")


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


def restart(self, config, *, x=True, lr=True):
    """Parts of `reset_config`."""
    if x:
        self.x = 0.0
    if lr:
        self.lr = config["lr"]
    return True


def step_late(self):
    loss = (self.x - 3) ** 2
    self.x -= self.lr * 2 * (self.x - 3)
    return {"loss": loss}


class ReadsItsConfig(Descent):
    """As in a sweep, where Tune sets `config` before it calls `reset_config`."""

    def step(self):
        self.lr = self.config["lr"]
        return super().step()


class Unfinished(Descent):
    def load_checkpoint(self, folder):
        pass


def but(**methods):
    """Descent with other methods."""
    return type("Descent", (Descent,), {"setup": lambda self, config: restart(self, config), **methods})


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
        (but(reset_config=lambda self, config: restart(self, config) and None), "only True"),
        (but(reset_config=lambda self, config: restart(self, config, x=False)), "something of the old trial"),
        (but(reset_config=lambda self, config: restart(self, config, lr=False)), "the old learning rate"),
        (but(step=step_late), "move x first"),
        (but(save_checkpoint=lambda self, folder: {"x": self.x}), "no file"),
        (but(load_checkpoint=lambda self, folder: folder), "the saved trial's next step"),
        (Unfinished, "load_checkpoint does nothing yet"),
        (Blank, "not attempted"),
        (Descent.step, "a class derived"),
    ],
)
def test_a_trainable_is_tried_here_first(cls, said, monkeypatch):
    def swept(cls, space, **_):
        return Results(*((lr, (3 * (1 - 2 * lr) ** 3) ** 2) for lr in space["lr"]["grid_search"]))

    monkeypatch.setattr(lesson_05, "run_sweep", swept)
    assert said in repr(check("05-2", cls))


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


def drivers(cpus, gpus, workers, worker_cpus, worker_gpus, driver_cpus):
    by_cpus = int(cpus // (workers * worker_cpus + driver_cpus))
    return by_cpus if worker_gpus == 0 else min(by_cpus, int(gpus // (workers * worker_gpus)))


def one_driver_in_all(cpus, gpus, workers, worker_cpus, worker_gpus, driver_cpus):
    return drivers(cpus - driver_cpus, gpus, workers, worker_cpus, worker_gpus, 0)


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
    "05-5": [
        (drivers, "solved"),
        (lambda cpus, gpus, workers, each, gpu, driver: cpus // (workers * each), "driver of each trial"),
        (lambda cpus, gpus, workers, each, gpu, driver: int(cpus // (workers + driver)), "more than one CPU"),
        (lambda cpus, gpus, workers, each, gpu, driver: cpus / (workers * each + driver), "whole trials"),
        (lambda cpus, gpus, workers, each, gpu, driver: cpus // (workers * each + driver), "needs a GPU"),
        (lambda *args: max(1, drivers(*args)), "does not fit"),
        (one_driver_in_all, "a driver of its own"),
        (lambda *args: drivers(*args[:3], max(1, args[3]), *args[4:]), "asks for 0 CPUs needs none"),
        (lambda cpus, gpus, *rest: gpus // 2 if gpus else drivers(cpus, gpus, *rest), "is 4"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
