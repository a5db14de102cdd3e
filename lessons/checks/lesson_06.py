"""Lesson 06: the last metric, not after every epoch, a validator to fix, the best checkpoint."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from course.exercises.answers import Wrong, close_to, describe, expect_function, result_of, returns
from course.exercises.registry import Lesson
from course.exercises.running import learners_errors, noting_rows, run_loop
from labkit.worker.calls import reports_to

LESSON = Lesson("06", "Asynchronous validation")


@LESSON.exercise(
    "06-1 · When is the last metric there?",
    "Draw the bars of three epochs, once with v shorter than t and once with v longer.",
    "Outside of the loop, a validation starts when its checkpoint is there and the one before has ended.",
    "If `v <= t`, only the last comes after the training. Else they queue from `t` on.",
)
def _last_metric(inside: Any, alongside: Any) -> None:
    # n epochs of t seconds, v seconds for a validation; the answers
    for n, t, v, in_loop, outside in (
        (10, 5.0, 2.0, 70, 52),
        (4, 3.0, 3.0, 24, 15),
        (5, 2.0, 6.0, 40, 32),
        (1, 4.0, 9.0, 13, 13),
    ):
        near = {n * t: "that is the training alone", n * t + v: "only one validation is in it"}
        returns(inside, (n, t, v), in_loop, name="inside", mistakes=near)
        near = {
            n * t: "the last checkpoint is there only when the training ends",
            n * t + v: "validations that take longer than an epoch queue, one after the other",
            n * v: "the first of them cannot start before the first epoch is over",
            n * (t + v): "then nothing would overlap",
            t + n * v: "a validation that is shorter than an epoch waits for the next checkpoint",
            n * v
            + v: "the first validation waits for one epoch, and each of the others for the one before it",
        }
        returns(alongside, (n, t, v), outside, name="alongside", mistakes=near)


@LESSON.exercise(
    "06-2 · Not after every epoch",
    "Start from `train_async`; only `validation` changes. Three values are possible: two kinds of "
    "`ValidationTaskConfig`, and `False`.",
    "Look at the last epoch first: it may be a third one as well. And which rank has the checkpoint?",
    '`ValidationTaskConfig(fn_kwargs={"rows": 1000}, timeout_s=60)` where `epoch % 3 == 0`, unless it is the '
    "last epoch; `validation=validation if checkpoint else False`.",
    seconds=120,
    stuck="a rank reports less often than the other, or a validation doesn't end",
)
def _sparse(train_sparsely: Any) -> None:
    """Two runs on two workers, with a validator that returns the rows it was asked for and the saved names.

    The weights of each last checkpoint are compared with those of one process that trains on the rows which
    the ranks have read, whatever their order.
    """
    expect_function(train_sparsely, "train_sparsely")
    from labkit.train import reported_checkpoints

    wanted = {7: {3: 1000, 6: 1000, 7: "all"}, 3: {3: "all"}}
    given = {"make_model": _small_model, "batch_size": _BATCH, "lr": _RATE}
    config = {"runs": [given | {"epochs": epochs} for epochs in wanted]}
    options = {"num_workers": 2, "trainer": _validating_trainer(), "name": "train_sparsely"}
    result, _ = run_loop(_noting(train_sparsely), config, remarks=_REMARKS, **options)
    reported = reported_checkpoints(result.path, result.filesystem)
    if len(reported) != sum(wanted):
        raise Wrong(f"{len(reported)} checkpoints were reported in 7 and 3 epochs")
    of_runs = reported[:7], reported[7:]
    for found, (epochs, expected) in zip(of_runs, wanted.items(), strict=True):
        numbers = [one.metrics.get("epoch") for one in found]
        if numbers != list(range(1, epochs + 1)):
            raise Wrong(f'the reported metric "epoch" is {numbers}, and should count 1 to {epochs}')
        for one in found:
            _same_rows(one, expected.get(one.metrics["epoch"]), epochs)
    for which, fact in result.return_value["wrong"]:
        raise Wrong(f"{which}: {fact}")
    for found, epochs, read in zip(of_runs, wanted, result.return_value["read"], strict=True):
        _dealt(read, epochs)
        _trained(_saved_weights(found[-1].checkpoint), read)


_ROWS, _BATCH, _RATE = 128, 32, 0.05  # of both workers together, and of one in a step
# What Ray says of a likely mistake, and what to say of it instead.
_REMARKS = {
    "Validation requires a checkpoint": "rank 1 asks for a validation, and has no checkpoint: only rank 0 asks",
    "attaches": "both ranks attach a checkpoint, and only rank 0 should",
    "FileNotFoundError": "the checkpoint's folder was gone before its upload had ended: with ASYNC, "
    "make it with `tempfile.mkdtemp()`, and let Ray remove it",
}


def _some_rows(read: list[int]) -> Any:
    """A data set that appends the number of each row that is read to `read`."""
    import torch

    numbers = torch.Generator().manual_seed(0)
    labels = torch.arange(_ROWS) % 10
    return noting_rows(
        read, torch.rand(_ROWS, 1, 28, 28, generator=numbers) + labels.view(-1, 1, 1, 1) / 10, labels
    )


def _small_model() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


def _saved_weights(checkpoint: Any) -> dict[str, Any]:
    import torch

    with checkpoint.as_directory() as folder:
        return torch.load(f"{folder}/state.pt", weights_only=True)["model"]


def _dealt(read: list[list[int]], epochs: int) -> None:
    """Require that the ranks, which have `read` these rows, have shared all rows in each epoch."""
    if not all(read):
        raise Wrong('no row of config["train"] was read: does the loop train, and on these rows?')
    for epoch in range(epochs):
        first, second = (
            rows[len(rows) * epoch // epochs : len(rows) * (epoch + 1) // epochs] for rows in read
        )
        if set(first) & set(second):
            raise Wrong("both workers train on the same rows: each of them needs a part of its own")
        if len(first) + len(second) != _ROWS or len({*first, *second}) != _ROWS:
            count = len(first) + len(second)
            raise Wrong(f"in an epoch the workers read {count} rows, and there are {_ROWS}")
    rows = read[0]
    first, second = rows[: len(rows) // epochs], rows[len(rows) // epochs : 2 * len(rows) // epochs]
    if first == second and first != sorted(first):
        raise Wrong(
            "the loader shuffles, and two epochs have the same order: call loader.sampler.set_epoch(epoch)"
        )


def _trained(weights: dict[str, Any], read: list[list[int]]) -> None:
    """Require the `weights` of one process that takes `_BATCH` rows of each rank in a step."""
    from course.models.torch import parameter_distance

    def ends_with(size: int, *ranks: list[int]) -> bool:
        return parameter_distance(weights, _one_process(size, ranks)) < 1e-4

    start = _small_model().state_dict()
    if {name: one.shape for name, one in weights.items()} != {name: one.shape for name, one in start.items()}:
        raise Wrong('the saved weights are not those of config["make_model"]()')
    if ends_with(_BATCH, *read):
        return
    if parameter_distance(weights, start) < 1e-6:
        raise Wrong(
            'the saved weights are those that config["make_model"]() begins with: nothing was trained'
        )
    if ends_with(_BATCH, read[0]):
        raise Wrong("rank 0 trained alone: the gradients were not averaged")
    for size in (8, 16, 64):
        if ends_with(size, *read):
            raise Wrong(f"a step uses {size} rows of each worker, and {_BATCH} are asked for")
    raise Wrong(
        f"the saved weights are not those of one process with {2 * _BATCH} rows in a step: is the optimizer "
        'as in train_async, with config["lr"]?'
    )


def _one_process(size: int, ranks: tuple[list[int], ...]) -> dict[str, Any]:
    """The weights after steps that use the next `size` rows of each of the `ranks`."""
    import torch

    x, y = _some_rows([]).tensors
    model = _small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=0.9)
    for start in range(0, len(ranks[0]), size):
        rows = [row for rank in ranks for row in rank[start : start + size]]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return model.state_dict()


def _validating_trainer() -> Any:
    from ray.train import ValidationConfig, ValidationTaskConfig
    from ray.train.torch import TorchTrainer

    validation = ValidationConfig(fn=_rows_asked_for, task_config=ValidationTaskConfig(timeout_s=30))
    return functools.partial(TorchTrainer, validation_config=validation)


def _same_rows(reported: Any, wanted: Any, epochs: int) -> None:
    status, rows = reported.status.name, reported.metrics.get("rows")
    which = f"epoch {reported.metrics['epoch']} of {epochs}"
    if status == "VALIDATION_FAILED":
        allowed = (
            'it must be a ValidationTaskConfig with fn_kwargs={"rows": …}, of a checkpoint with state.pt'
        )
        raise Wrong(f"{which}: its validation failed; {allowed}")
    if status not in ("VALIDATED", "COMMITTED"):
        raise Wrong(f"{which}: its validation has the status {status}")
    if reported.metrics.get("wrapped"):
        raise Wrong(f"{which}: the names in its checkpoint begin with `module.`, the wrapper's")
    if wanted is None and status == "VALIDATED":
        raise Wrong(f"{which} was validated, and needs no validation: False")
    if wanted is not None and status != "VALIDATED":
        raise Wrong(f"{which} was not validated")
    if wanted is not None and rows != wanted:
        asked = {"default": "without fn_kwargs", "all": "on all rows"}.get(rows, f"on {rows} rows")
        raise Wrong(f"{which} was validated {asked}; it should be {wanted} rows")


def _noting(loop: Callable) -> Callable:
    """The loop in several runs.

    They return {"wrong": (epoch, what is wrong) of what rank 0 reports, "read": by run and rank, rows}.
    """

    def noting(config: dict) -> dict[str, list]:
        import ray.train

        wrong, every, report, epochs = [], [], ray.train.report, 0
        rank = ray.train.get_context().get_world_rank()

        def noted(metrics: dict, *args: Any, **options: Any) -> None:
            asked = options.get("validation")
            if rank and (options.get("checkpoint") or any(args)):
                raise RuntimeError("rank 1 attaches a checkpoint")
            which = f"epoch {metrics.get('epoch')} of {epochs}"
            if isinstance(asked, ray.train.ValidationTaskConfig) and asked.timeout_s is None:
                fact = "its ValidationTaskConfig has no timeout_s, so fit() would wait forever"
                wrong.append((which, fact))
            if options.get("checkpoint_upload_mode") != ray.train.CheckpointUploadMode.ASYNC:
                wrong.append((which, "report waits for the upload: CheckpointUploadMode.ASYNC"))
            report(metrics, *args, **options)

        with reports_to(loop, noted):
            for run in config["runs"]:
                epochs, read = run["epochs"], []
                loop(run | {"train": _some_rows(read)})
                every.append(_of_all_ranks(read))
        return {"wrong": wrong, "read": every}

    return noting


def _of_all_ranks(value: Any) -> list[Any]:
    import torch

    values: list[Any] = [None, None]
    torch.distributed.all_gather_object(values, value)
    return values


def _rows_asked_for(checkpoint: Any, rows: Any = "default") -> dict[str, Any]:
    import torch

    with checkpoint.as_directory() as folder:
        names = list(torch.load(f"{folder}/state.pt", weights_only=True)["model"])
    return {"rows": "all" if rows is None else rows, "wrapped": names[0].startswith("module.")}


@LESSON.exercise(
    "06-3 · Fix this validator",
    "Which names does the function use and not create? What does dropout do to a model that isn't in `eval()`?",
    "Read the rows inside, as `validate` does. Call `.eval()`. And Ray expects a dict of metrics.",
    '`x, y = validation_rows()`, `model.eval()`, `.item()`, and `{"val_accuracy": …}` at the end.',
    seconds=90,
    stuck="the function waits for something in its process",
)
def _validator(fixed_validator: Any, result: Any) -> None:
    """Run it in tasks of the cluster, on the worst and on the best checkpoint that were validated."""
    validated = [
        (metrics["val_accuracy"], checkpoint)
        for checkpoint, metrics in result.best_checkpoints
        if "val_accuracy" in metrics
    ]
    if not validated:
        raise Wrong("`result` has no validated checkpoint: run the cells from *Validate while…* on first")
    validated.sort(key=lambda pair: pair[0])
    answers = []
    for known, checkpoint in (validated[-1], validated[0]):
        metrics, active = _validated(fixed_validator, checkpoint)
        if not isinstance(metrics, dict) or "val_accuracy" not in metrics:
            raise Wrong(f'it returns {describe(metrics)}, and {{"val_accuracy": …}} is expected')
        accuracy = metrics["val_accuracy"]
        if type(accuracy) is not float:
            raise Wrong(f"val_accuracy is {describe(accuracy)}, and a plain float is expected")
        if any(active):
            raise Wrong("dropout is still active: call `.eval()` on the model that you measure")
        if not active:
            raise Wrong("the network has no dropout layer any more: keep it, and switch it off")
        answers.append((accuracy, known))
    same_number = len({accuracy for accuracy, _ in answers}) < len({known for _, known in answers})
    for accuracy, known in answers:
        lower = "too low: are the checkpoint's weights loaded into the model?"
        higher = "too high: does it use all validation rows?"
        reason = lower if accuracy < known else higher
        if same_number:
            reason = "the same for two checkpoints: are the checkpoint's weights loaded into the model?"
        otherwise = f"`validate` found {known:.3f} on all rows of this checkpoint. Yours is {reason}"
        near = {known * 100: "a share from 0 to 1 is expected"}
        close_to(accuracy, known, abs=0.002, what="val_accuracy", mistakes=near, otherwise=otherwise)


def _validated(validator: Callable, checkpoint: Any) -> tuple[Any, list[bool]]:
    """Return the validator's result, and for each call of a dropout layer whether it was active."""
    expect_function(validator, "fixed_validator")

    def with_dropout_seen(checkpoint: Any) -> tuple[Any, list[bool]]:
        import torch

        active: list[bool] = []

        def note(module: Any, *_: Any) -> None:
            if isinstance(module, torch.nn.Dropout):
                active.append(module.training)

        hook = torch.nn.modules.module.register_module_forward_hook(note)
        try:
            return validator(checkpoint), active
        finally:
            hook.remove()

    return in_a_task(with_dropout_seen, checkpoint, name="fixed_validator")


@LESSON.exercise(
    "06-4 · The best of them",
    "Which of them have a `val_accuracy` that you can trust? Their `status` says so.",
    "First keep those with `ReportedCheckpointStatus.VALIDATED`, then choose the largest.",
    "`best = max(…, key=lambda one: one.metrics['val_accuracy'], default=None)`, and return "
    "`best.checkpoint` only if there is a best one.",
)
def _best_of(best_of: Any) -> None:
    for rows, expected in (
        ([("VALIDATED", 0.7), ("VALIDATED", 0.9), ("VALIDATED", 0.8)], 1),
        ([("VALIDATED", 0.6), ("VALIDATION_FAILED", None), ("VALIDATED", 0.5)], 0),
        ([("VALIDATION_TIMEOUT", None), ("VALIDATED", 0.2), ("PENDING_VALIDATION", None)], 1),
        # A loop may report a value under that name, too: it is not a validated one.
        ([("VALIDATED", 0.6), ("VALIDATION_FAILED", 0.99)], 0),
        ([("VALIDATED", 0.0), ("VALIDATION_FAILED", 0.3)], 0),
        ([("VALIDATION_FAILED", None), ("COMMITTED", None)], None),
    ):
        entries = [_reported(place, *row) for place, row in enumerate(rows)]
        listed = ", ".join(f"{status} {'–' if value is None else value}" for status, value in rows)
        answer = result_of(best_of, list(entries), what="best_of")
        if any(answer is one for one in entries):
            raise Wrong("best_of returns the whole entry, and its `checkpoint` is expected")
        found = {id(one.checkpoint): one.checkpoint.path for one in entries}.get(id(answer), describe(answer))
        if expected is None and answer is not None:
            raise Wrong(f"of {listed}, none is validated, and best_of returns {found}")
        if expected is not None and answer is not entries[expected].checkpoint:
            raise Wrong(f"of {listed}, best_of returns {found}, and not the one at place {expected}")


def _reported(place: int, status: str, value: float | None) -> Any:
    """What Ray has for a reported checkpoint."""
    from ray.train import ReportedCheckpointStatus

    metrics = {"epoch": place, "loss": 0.1} | ({} if value is None else {"val_accuracy": value})
    checkpoint = SimpleNamespace(path=f"the one at place {place}")
    return SimpleNamespace(checkpoint=checkpoint, metrics=metrics, status=ReportedCheckpointStatus[status])


def in_a_task(function: Callable, *args: Any, name: str) -> Any:
    """Send the learner's `function` to a process of the cluster that is connected, and return its result.

    Raises:
        Wrong: it raises, or it takes more than a megabyte along.
    """
    import ray
    from ray import cloudpickle

    expect_function(function, name)
    size = len(cloudpickle.dumps(function))
    if size > 1e6:
        raise Wrong(f"pickled, {name} has {size / 1e6:.1f} MB: it takes data of this notebook along")
    with learners_errors(name):
        return ray.get(ray.remote(num_cpus=0)(function).remote(*args))
