"""A learner's trainable or Tuner, run by a check on the cluster that is connected."""

from typing import TYPE_CHECKING, Any

from labkit.exercises.answers import NotAttempted, Wrong, describe

if TYPE_CHECKING:
    from ray.tune import ResultGrid, Tuner


def run_sweep(trainable: type, space: dict[str, Any], *, iterations: int, name: str) -> "ResultGrid":
    """Sweep a `tune.Trainable` in one process: each trial ends after `iterations` steps, with a checkpoint.

    Raises:
        Wrong: a trial fails; `name` is what the message calls the trainable.
    """
    import tempfile

    from ray import tune

    with tempfile.TemporaryDirectory(prefix="labkit-check-", ignore_cleanup_errors=True) as folder:
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
            run_config=tune.RunConfig(
                storage_path=folder,
                stop={"training_iteration": iterations},
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            ),
        )
        return run_tuner(tuner, name)


def run_tuner(tuner: "Tuner", name: str) -> "ResultGrid":
    """Check the learner's `tuner` as the panel would, run it without Tune's tables, and return the results.

    Raises:
        Wrong: it cannot work, or a trial fails.
    """
    import ray
    from ray import tune

    from labkit.errors import LabError
    from labkit.tune.checks import check_plan
    from labkit.tune.trials import TunerPlan, names_without_metric, without_noise

    if not isinstance(tuner, tune.Tuner):
        raise Wrong(f"{name} is {describe(tuner)}, and a tune.Tuner is expected")
    plan = TunerPlan.from_tuner(tuner)
    try:
        check_plan(plan, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        with without_noise():
            plan.run.verbose, plan.run.progress_reporter = 0, tune.CLIReporter()
            results = tuner.fit()
    except LabError as error:
        raise Wrong(error.fact) from error
    except Exception as error:
        if (names := names_without_metric(str(error))) is not None:
            reported = ", ".join(map(repr, names)) or "nothing"
            raise Wrong(f"trials are compared by {plan.metric!r}, and they report {reported}") from error
        raise Wrong(f"fit() raised {type(error).__name__}: {str(error).strip().splitlines()[-1]}") from error
    if results.num_errors:
        last = str(results.errors[0]).strip().splitlines()[-1]
        if "ellipsis" in last.lower():
            raise NotAttempted
        raise Wrong(f"{results.num_errors} of {len(results)} trials failed, the first with {last}")
    return results
