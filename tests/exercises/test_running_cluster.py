"""What a check runs on the cluster: loops, sweeps and tasks; and a limit that frees the CPUs."""

import pytest
import ray.train
from ray import tune

from course.exercises import registry
from course.exercises.answers import NotAttempted, Wrong
from course.exercises.running import limited, run_loop
from labs import idle

pytestmark = [pytest.mark.slow, pytest.mark.covers("course/exercises/")]


def test_a_rank_that_waits_is_stopped_and_its_cpus_are_free_again(lab):
    """Loops that end well are in the solved lessons."""

    def waits(config):
        if ray.train.get_context().get_world_rank() == 0:
            ray.train.report({})

    with pytest.raises(Wrong, match="Likely: rank 1 never reports"), limited(12, "rank 1 never reports"):
        run_loop(waits, num_workers=2)
    assert idle(lab)
    assert run_loop(lambda config: 7, num_workers=2)[0].return_value == 7  # the next check works


def test_a_sweep_that_cannot_work_or_is_unfinished(lab, tmp_path, monkeypatch):
    def run(trainable):
        space = {"lr": tune.grid_search([0.1, 0.5])}
        folder = tune.RunConfig(storage_path=str(tmp_path))
        registry.load("05").run_tuner(tune.Tuner(trainable, param_space=space, run_config=folder), "it")

    with pytest.raises(Wrong, match="640 CPU of one node.* would wait forever"):
        run(tune.with_resources(lambda config: {"loss": config["lr"]}, {"CPU": 640}))
    with pytest.raises(NotAttempted):
        run(lambda config: tune.report({"loss": ... + config["lr"]}))
    # Without a refusal, fit() would start a Ray of its own.
    monkeypatch.setattr("labkit.local.cluster.current", lambda: None)
    with pytest.raises(Wrong, match="no cluster is connected"):
        run(lambda config: {"loss": config["lr"]})
