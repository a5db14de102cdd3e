"""Lesson 03: a loop for several workers, more workers, and a metric of all ranks."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from course.exercises.answers import (
    NotAttempted,
    Wrong,
    close_to,
    describe,
    expect_function,
    expect_type,
    is_blank,
    require_no_dots,
)
from course.exercises.registry import Lesson
from course.exercises.running import noting_rows, run_loop
from labkit.worker.calls import reports_to

LESSON = Lesson("03", "Your loop on two workers")
_ROWS, _BATCH = 96, 32  # of all workers together: three updates
# What torch says of a likely mistake, and what to say of it instead.
_REMARKS = {
    "attaches": "with two workers, both attach a checkpoint: only rank 0 should, and the others pass None",
    "no attribute 'module'": "with one worker there is no wrapper, so the model has no `.module`",
}
_NOTHING = {"NoneType": "`all_reduce` changes the tensor in place and returns nothing"}
# Of 03-5: for each rank (rows, right answers) of its batches.
_BATCHES = ([(6, 3), (2, 2)], [(4, 1), (1, 0), (1, 0)])


@LESSON.exercise(
    "03-4 · Four workers",
    "The global batch is the batch of one worker times the number of workers. What is it in each column?",
    "An update uses one global batch. How many full ones are there in 50,000 images?",
    "Keep 128 in total: 32 for each worker. Or 4 · 128 = 512 in total: then the learning rate is four times 0.05.",
)
def _four_workers(same_model: Any, scaled: Any) -> None:
    _fields(
        same_model,
        "same_model",
        {
            "batch_size": (
                32,
                {
                    128: "four workers would use 512 images in an update",
                    512: "that is the global batch if each worker uses 128",
                },
            ),
            "steps per epoch": (
                390,
                {
                    1562: "an update uses the images of all four workers, not only those of one",
                    1563: "an update uses the images of all four workers, not only those of one",
                    97: "that is with a global batch of 512",
                    391: "only full global batches count",
                    390.625: "there is no part of a step",
                },
            ),
            "lr": (
                0.05,
                {
                    0.2: "the global batch hasn't grown",
                    0.0125: "DDP averages the gradients, so the same global batch needs the same rate",
                },
            ),
        },
    )
    _fields(
        scaled,
        "scaled",
        {
            "batch_size": (
                128,
                {
                    32: "that keeps the global batch",
                    512: "that is the global batch, and `batch_size` is what one worker uses",
                },
            ),
            "steps per epoch": (
                97,
                {
                    390: "that is with a global batch of 128",
                    391: "that is with a global batch of 128",
                    1562: "an update uses more images than before, not fewer",
                    98: "only full global batches count",
                    97.65625: "there is no part of a step",
                },
            ),
            "lr": (
                0.2,
                {
                    0.05: "the global batch is four times larger, so each update can be bolder",
                    0.8: "that is a factor of 16, and the global batch is four times larger",
                    0.1: "that is the square root of the factor; the linear rule uses the factor itself",
                    0.0125: "that makes each update more careful, and there are fewer of them",
                },
            ),
        },
    )


@LESSON.exercise(
    "03-5 · Accuracy over all ranks",
    "Which two numbers of each rank do you need, so that a rank with few rows counts less?",
    "Count right answers and rows over all batches of this rank, and put both counts into one tensor.",
    "`torch.distributed.all_reduce(counts)` once, after the loop and on every rank; then "
    "`(counts[0] / counts[1]).item()`.",
    seconds=90,
    stuck="a rank waits for the others: does each of them call all_reduce, and equally often?",
)
def _over_ranks(accuracy_on_all_ranks: Any) -> None:
    """The function on two workers, whose batches differ in number and length."""
    name = "accuracy_on_all_ranks"
    expect_function(accuracy_on_all_ranks, name)
    config = {"measure": accuracy_on_all_ranks, "batches": _BATCHES}
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = partial(TorchTrainer, torch_config=TorchConfig(timeout_s=20))
    try:
        result, _ = run_loop(_measured, config, num_workers=2, trainer=trainer, name=name, remarks=_NOTHING)
    except Wrong as error:
        if any(sign in str(error) for sign in ("imed out", "onnection closed", "gloo", "Gloo", "size")):
            raise Wrong(
                "a rank waits for the others: does each of them call all_reduce, and equally often?"
            ) from None
        raise
    first, second = result.return_value
    for rank, answer in enumerate((first, second)):
        if not isinstance(answer, float):
            nothing = f" ({_NOTHING['NoneType']})" if answer == "None" else ""
            raise Wrong(f"rank {rank} returns {answer}; a number is expected on every rank{nothing}")
    rows, right = ([sum(one[k] for one in batches) for batches in _BATCHES] for k in (0, 1))
    shares = [hits / count for hits, count in zip(right, rows, strict=True)]
    means = [sum(hits / count for count, hits in batches) / len(batches) for batches in _BATCHES]
    if abs(first - second) > 1e-5:
        own = all(abs(a - b) < 1e-5 for a, b in zip((first, second), shares, strict=True))
        own = own or all(abs(a - b) < 1e-5 for a, b in zip((first, second), means, strict=True))
        if own:
            raise Wrong("each rank returns the accuracy of its own rows only")
        raise Wrong(f"the ranks return different values, {first:.3g} and {second:.3g}: what do they add up?")
    every = [hits / count for batches in _BATCHES for count, hits in batches]
    weighed = "that is a mean of means: a batch or a rank with few rows counts as much as one with many"
    near = {
        sum(shares) / 2: weighed,
        sum(means) / 2: weighed,
        sum(every) / len(every): weighed,
        sum(shares): "that is the sum of the ranks' accuracies",
        sum(means): "that is the sum of the ranks' accuracies",
        sum(right): "that is the number of right answers",
        100 * sum(right) / sum(rows): "that is in percent; a share between 0 and 1 is expected",
        1 - sum(right) / sum(rows): "that is the share that the model gets wrong",
    }
    close_to(first, sum(right) / sum(rows), rel=1e-4, mistakes=near, what="the accuracy of all ranks")


@LESSON.exercise(
    "03-1 · Make this loop distributed",
    "The four changes at the start of the lesson are all you need. How many rows does one worker use in an update, and which rank saves?",
    "`prepare_model`, `get_world_size`, `prepare_data_loader`; `.module` of the wrapper is the plain model.",
    '`config["global_batch"] // ray.train.get_context().get_world_size()`, `prepare_data_loader(loader)`, '
    'and `getattr(model, "module", model).state_dict()`.',
    seconds=45,
    stuck="a rank waits for the others: does each of them call `ray.train.report`?",
)
def _blanks(train_blanks: Any) -> None:
    """A loop over ``config["rows"]`` that saves weights.pt, against the training of one process."""
    require_no_dots(train_blanks)
    read: list[int] = []
    rows = _random_rows(read)
    config, name = {"rows": rows, "global_batch": _BATCH}, "train_blanks"
    _, reports = run_loop(train_blanks, config, name=name, remarks=_REMARKS)
    _as_in_one_process(rows, _weights_of(reports, "in one process"), read[:])
    _, reports = run_loop(_on_its_own_part(train_blanks), config, num_workers=2, name=name, remarks=_REMARKS)
    weights = _weights_of(reports, "with two workers")
    if any(value.isnan().any() for value in weights.values()):
        raise Wrong("with two workers, each of them trained on all rows instead of its own part")
    if _gap(rows, _BATCH, weights) < 1e-4:
        return
    if _gap(rows, 2 * _BATCH, weights) < 1e-4:
        raise Wrong("with two workers, an update used twice the global batch: each worker took all of it")
    if _gap(rows, _BATCH // 2, weights, every=2) < 1e-4:
        raise Wrong("with two workers, rank 0 trained alone: the gradients were not averaged")
    if _gap(rows, _BATCH, weights, lr=0.2) < 1e-4:
        raise Wrong("with two workers, the global batch stays the same, so the learning rate stays, too")
    raise Wrong("with two workers, the weights are not those of one process with the global batch")


def _fields(answer: Any, name: str, fields: Mapping[str, tuple[float, Mapping[float, str]]]) -> None:
    expect_type(answer, "dict", what=name)
    if is_blank(answer):
        raise NotAttempted
    if set(answer) != set(fields):
        raise Wrong(f"{name} should have the keys {', '.join(fields)}")
    for field, (right, mistakes) in fields.items():
        close_to(answer[field], right, mistakes=mistakes, what=f"{name}[{field!r}]")


def _measured(config: dict) -> list[float | str]:
    """On every rank: what the learner's function returns for batches whose right answers are known."""
    import numbers

    import ray.train
    import torch

    rank, batches = ray.train.get_context().get_world_rank(), []
    for rows, right in config["batches"][rank]:
        labels = torch.arange(rows) % 3
        answers = torch.where(torch.arange(rows) < right, labels, (labels + 1) % 3)
        batches.append((torch.nn.functional.one_hot(answers, 3).float(), labels))
    found = config["measure"](torch.nn.Identity(), batches)  # the input is the answer
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        found = found.item()
    number = isinstance(found, numbers.Real)
    found = float(found) if number else repr(found)[:60]
    together: list = [None, None]
    torch.distributed.all_gather_object(together, found)
    return together


def _random_rows(read: list[int]) -> Any:
    """A data set that appends the number of each row that is read to `read`."""
    import torch

    numbers = torch.Generator().manual_seed(0)
    images = torch.rand(_ROWS, 28, 28, generator=numbers)
    return noting_rows(read, images, torch.randint(10, (_ROWS,), generator=numbers))


def _as_in_one_process(rows: Any, weights: dict[str, Any], read: list[int]) -> None:
    """Require the `weights` of updates that use `_BATCH` rows each, in their order."""
    if _gap(rows, _BATCH, weights) <= 1e-4:
        return
    if read != sorted(read):
        raise Wrong(
            "in one process, the rows are shuffled, and the check compares runs that keep their order"
        )
    if _gap(rows, _BATCH // 2, weights) < 1e-4:
        raise Wrong(
            "in one process, an update uses half of the global batch: "
            "divide it by the number of workers, whatever that is"
        )
    raise Wrong(
        "in one process, the weights in the checkpoint differ from those that a run on all rows ends with"
    )


def _weights_of(reports: list[tuple[dict, Any]], where: str) -> dict[str, Any]:
    """The weights in the last checkpoint of the learner's loop."""
    import pickle

    import torch

    if not reports or reports[-1][1] is None:
        raise Wrong(f"{where}, no report came with a checkpoint: which rank saves one?")
    with reports[-1][1].as_directory() as folder:
        try:
            weights = torch.load(f"{folder}/weights.pt", weights_only=True)
        except pickle.UnpicklingError:
            raise Wrong(f"{where}, weights.pt has the model itself: save its state_dict()") from None
    expect_type(weights, "dict", what=f"{where}, what weights.pt has")
    if any(name.startswith("module.") for name in weights):
        raise Wrong(f"{where}, the names begin with `module.`: these are the weights of the wrapper")
    return weights


def _gap(rows: Any, size: int, weights: dict[str, Any], every: int = 1, lr: float = 0.1) -> float:
    """How far `weights` are from a run in one process, on every second row if `every` is 2."""
    import torch
    from torch.utils.data import DataLoader, Subset

    from course.models.torch import cnn, parameter_distance

    model = cnn(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in DataLoader(Subset(rows, range(0, len(rows), every)), batch_size=size):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return parameter_distance(model, weights)


def _on_its_own_part(loop: Callable) -> Callable:
    """The loop for two workers: each of them has NaN in the rows that a sampler gives to the other.

    It fails where rank 1 attaches a checkpoint, which Ray would merge with that of rank 0.
    """

    def spoiled(config: dict) -> Any:
        import ray.train
        from torch.utils.data import TensorDataset

        rank, report = ray.train.get_context().get_world_rank(), ray.train.report
        images, labels = config["rows"].tensors
        images = images.clone()
        images[1 - rank :: 2] = float("nan")

        def only_of_rank_0(metrics: dict, checkpoint: Any = None, **options: Any) -> None:
            if rank and checkpoint is not None:
                raise RuntimeError("rank 1 attaches a checkpoint")
            report(metrics, checkpoint, **options)

        with reports_to(loop, only_of_rank_0):
            return loop(config | {"rows": TensorDataset(images, labels)})

    return spoiled
