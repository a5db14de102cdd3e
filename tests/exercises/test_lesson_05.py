"""The exercises of lesson 05: what is right, and what a likely mistake is told."""

import pytest

from labkit.exercises import check


def anew(self, config):
    self.model = self.make_model()
    self.optimizer = self.make_optimizer(self.model, config["lr"])
    self.epoch = 0
    return True


def in_a_hurry(self, config):
    self.optimizer = self.make_optimizer(self.model, config["lr"])


def old_optimizer(self, config):
    self.model, self.epoch = self.make_model(), 0
    return True


def wrong_order(self, config):
    self.optimizer = self.make_optimizer(self.model, config["lr"])
    self.model, self.epoch = self.make_model(), 0
    return True


def old_rate(self, config):
    self.model, self.epoch = self.make_model(), 0
    self.optimizer = self.make_optimizer(self.model, 0.1)
    return True


def goes_on_counting(self, config):
    self.model = self.make_model()
    self.optimizer = self.make_optimizer(self.model, config["lr"])
    return True


def says_nothing(self, config):
    anew(self, config)


def stub(self, config): ...


@pytest.mark.parametrize(
    "function, said",
    [
        (anew, "solved"),
        (in_a_hurry, "weights of the trial before"),
        (old_optimizer, "still that of the trial before"),
        (wrong_order, "build the model first"),
        (old_rate, "lr = 0.25"),
        (goes_on_counting, "self.epoch is 9"),
        (says_nothing, "only True"),
        (lambda self: True, "TypeError"),
        (stub, "not attempted"),
        (7, "a function is expected"),
    ],
)
def test_begin_anew(function, said):
    assert said in repr(check("05-1", function))


@pytest.mark.parametrize(
    "trials, minutes, said",
    [
        (40, 10, "solved"),
        (8, 2, "repeats all of it"),
        (5, 1, "without a grid"),
        (30, 7.5, "multiply"),
        (200, 50, "multiplies nothing"),
        (40, 40, "four run at a time"),
        (40, 160, "faster"),
        (40, ..., "not attempted"),
    ],
)
def test_count(trials, minutes, said):
    assert said in repr(check("05-2", trials, minutes))


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
    "function, said",
    [
        (lambda cpus, workers, each, driver: int(cpus // (workers * each + driver)), "solved"),
        (lambda cpus, workers, each, driver: cpus // (workers * each + driver), "solved"),
        (lambda cpus, workers, each, driver: cpus / (workers * each + driver), "whole trials"),
        (lambda cpus, workers, each, driver: cpus // (workers * each), "driver of each trial"),
        (lambda cpus, workers, each, driver: cpus // (workers + driver), "more than one CPU"),
        (lambda cpus, workers, each, driver: max(1, cpus // (workers * each + driver)), "does not fit"),
        (lambda cpus, workers, each, driver: "two", "a number is expected"),
    ],
)
def test_drivers_and_workers(function, said):
    assert said in repr(check("05-4", function))


@pytest.mark.parametrize(
    "tools, said",
    [
        (["grid", "asha", "optuna", "pbt"], "solved"),
        (("Grid", "ASHA", "Optuna", "PBT"), "solved"),
        (["asha", "grid", "optuna", "pbt"], "number 1 is not"),
        (["grid", "asha", "pbt", "optuna"], "number 3 is not"),
        (["grid", "asha", "random", "pbt"], "choose one of"),
        (["grid"], "a list of 4"),
        ([..., ..., ..., ...], "not attempted"),
    ],
)
def test_which_tool(tools, said):
    assert said in repr(check("05-5", tools))
