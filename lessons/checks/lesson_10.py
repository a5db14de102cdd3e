"""Lesson 10: a leak, a difference and its error, a loop for a table, and a run that is repeatable."""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from course.exercises import answers
from course.exercises.answers import Wrong, close_to, describe, expect_function, expect_type, result_of
from course.exercises.registry import Lesson
from course.exercises.running import returned, run_loop
from labkit.worker.calls import reports_to

LESSON = Lesson("10", "Your own experiment")
_EPOCHS, _CRASHES_AFTER, _NOISE = 4, 2, 5.0
_ROWS = 320  # for training, of a table
_TEXTS, _LENGTH = 96, 8  # rows of text, and letters of a row
_SHAPES = "does `model(x)`, [n, 1], meet y, [n]?"


@LESSON.exercise(
    "10-1 · A leak",
    "What is drawn at random here: a photograph, or a piece of fruit?",
    "`np.unique(pieces)` has each piece once. Draw those, then look up which photographs are of one of them.",
    "`chosen = different[numbers.random(len(different)) < share]`, then `np.isin(pieces, chosen)`.",
)
def _for_testing(for_testing: Any) -> None:
    import numpy as np

    pieces = np.random.default_rng(1).permutation(np.repeat(np.arange(1000, 1400), 5))
    masks = []
    for wanted, seed in ((0.25, 0), (0.25, 0), (0.25, 1), (0.5, 0)):
        answer = result_of(for_testing, pieces, wanted, seed, what="for_testing")
        mask = answers.array_of(answer, shape=pieces.shape)
        if mask.dtype != bool:
            raise Wrong(f"for_testing returns {mask.dtype}; True or False for each photograph is expected")
        if both := len(np.intersect1d(pieces[mask], pieces[~mask])):
            raise Wrong(f"{both} of 400 pieces have photographs on both sides")
        masks.append(mask)
        share = len(np.unique(pieces[mask])) / 400
        if abs(share - wanted) > 0.1:
            raise Wrong(f"{share:.0%} of the pieces are for testing, and the share is {wanted:.0%}")
    if (masks[0] != masks[1]).any():
        raise Wrong("the same seed gives a different division: draw with numbers made from the seed")
    if (masks[0] == masks[2]).all():
        raise Wrong("two seeds give the same division: the seed is not used")


@LESSON.exercise(
    "10-2 · Is it a difference?",
    "Three steps: the standard deviation of each arm, the standard error of each mean, and the hypotenuse.",
    "`np.std(a, ddof=1)` is the standard deviation of a few runs; without `ddof` it's too small.",
    "`np.sqrt(np.var(a, ddof=1) / len(a) + np.var(b, ddof=1) / len(b))`",
)
def _difference(difference: Any) -> None:
    from math import hypot
    from statistics import mean, pstdev, stdev

    for a, b in (([0.80, 0.84, 0.85], [0.90, 0.89, 0.95]), ([3.0, 5.0], [4.0, 1.0, 2.0, 2.5, 2.0])):
        answer = result_of(difference, list(a), list(b), what="difference")
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Wrong(f"difference returns {describe(answer)}, and two numbers are expected")
        of_a, of_b, n, m = stdev(a), stdev(b), len(a), len(b)
        right, error = mean(b) - mean(a), hypot(of_a / n**0.5, of_b / m**0.5)
        lost = "the sign is lost: it is below 0 where b is worse"  # b is worse in the second case only
        wrong = {
            -right: "that is a minus b" if right > 0 else lost,
            error: "that is the standard error; the difference comes first",
        }
        close_to(answer[0], right, what="the difference", mistakes=wrong)
        pooled = ((of_a**2 * (n - 1) + of_b**2 * (m - 1)) / (n + m - 2)) ** 0.5
        wrong = {
            2 * error: "those are two standard errors: return one, the rule doubles it later",
            error / 2: "that is half of it: the squares are added, not averaged",
            error / 2**0.5: "the squares are added, not averaged",
            of_a / n**0.5: "that is the standard error of a's mean; b's is uncertain, too",
            of_b / m**0.5: "that is the standard error of b's mean; a's is uncertain, too",
            pooled * (1 / n + 1 / m) ** 0.5: "that assumes one spread for both arms: use each arm's own",
            hypot(pstdev(a) / n**0.5, pstdev(b) / m**0.5): "of a few runs, divide by n - 1: ddof=1",
            hypot(of_a, of_b): "that is without the number of runs: the more, the smaller",
            of_a / n**0.5 + of_b / m**0.5: "add the squares, and take the root",
            of_a**2 / n + of_b**2 / m: "take the root of that",
            hypot(of_a / n, of_b / m): "divide by the square root of the number of runs",
        }
        close_to(answer[1], error, what="the standard error", mistakes=wrong)


@LESSON.exercise(
    "10-3 · Write the loop",
    "Which lines of this lesson's loop are about images, and which about ranks and checkpoints?",
    "`model(x)` has the shape [n, 1], and y [n]: `.squeeze(1)`. An error is better when it is smaller.",
    "`mse_loss(model(x).squeeze(1), y)`; `torch.optim.SGD(…, lr=0.05)`; `my_loop.resume(model, optimizer)` "
    'before the epochs; `CheckpointConfig(2, checkpoint_score_attribute="rmse", checkpoint_score_order="min")`.',
    seconds=120,
    stuck="one rank reports less often than the other, or not at all",
)
def _table(train_table: Any, keep: Any, store: Any = None) -> None:
    """A loop for a table: in this process, then on two workers that fail once."""
    expect_type(keep, "CheckpointConfig", what="keep_two")
    close_to(keep.num_to_keep or 0, 2, what="num_to_keep", otherwise="two should be kept")
    if keep.checkpoint_score_attribute != "rmse" or keep.checkpoint_score_order != "min":
        found = f"{keep.checkpoint_score_attribute!r}, {keep.checkpoint_score_order!r}"
        raise Wrong(f"keep_two ranks checkpoints by {found}: that doesn't keep those with the lowest rmse")
    import torch

    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=numbers)
    y = 300 + x @ torch.tensor([80.0, 10.0, -40.0]) + _NOISE * torch.randn(400, generator=numbers)
    rows = torch.utils.data.TensorDataset(x[:_ROWS], y[:_ROWS])
    config = {"epochs": _EPOCHS, "train": rows, "valid": (x[_ROWS:], y[_ROWS:])}
    _of_one_process(train_table, config, spread=y.std().item())
    options = {"name": "train_table", "max_failures": 1, "checkpoint_config": keep}
    _of_two_workers(returned(_fails_once, {**config, "loop": train_table}, store=store, **options))


def _of_one_process(train_table: Any, config: dict, spread: float) -> None:
    """Run the loop in this process: its reports, and whether each rmse is right for its model."""
    expect_function(train_table, "train_table")
    rights: list[tuple[float, dict[float, str]]] = []

    @functools.wraps(train_table)
    def judged(config: dict) -> Any:
        import ray.train

        report = ray.train.report

        def judge(metrics: dict, *args: Any, **options: Any) -> None:
            if seen.model is not None:
                rights.append(_rmse(seen.model, config))
            report(metrics, *args, **options)

        with _observing(config["train"].tensors[0], 1) as seen, reports_to(train_table, judge):
            return train_table(config)

    _, reports = run_loop(judged, config, name="train_table")
    if len(reports) != _EPOCHS:
        raise Wrong(f"in {_EPOCHS} epochs, the loop reported {len(reports)} times")
    if len(rights) != _EPOCHS:
        raise Wrong("it trains no `torch.nn.Linear(columns, 1)`, and that is the model of this exercise")
    for epoch, ((metrics, checkpoint), (rmse, near)) in enumerate(zip(reports, rights, strict=True)):
        early = {epoch + 1: "epochs are counted from 0"}
        close_to(metrics.get("epoch"), epoch, what="the metric epoch", mistakes=early)
        other = f"with its model it is {rmse:.4g} on the validation rows: of which rows, and which error?"
        close_to(metrics.get("rmse"), rmse, rel=1e-3, what="the metric rmse", mistakes=near, otherwise=other)
        if checkpoint is None:
            raise Wrong("a report came without a checkpoint")
    if rmse > 20:
        likely = _SHAPES if abs(rmse - spread) < 15 else "is the learning rate large enough?"
        raise Wrong(f"the last rmse is {rmse:.3g}, and {_NOISE:g} is possible: {likely}")


def _rmse(model: Any, config: dict) -> tuple[float, dict[float, str]]:
    """What a model's rmse is on the validation rows, and what mistakes make of it."""
    import torch

    (x, y), (seen_x, seen_y) = config["valid"], config["train"].tensors
    with torch.no_grad():
        square = lambda errors: errors.square().mean().item()  # noqa: E731
        errors, crossed = model(x).squeeze(1) - y, square(model(x) - y)
        trained = square(model(seen_x).squeeze(1) - seen_y)
    return square(errors) ** 0.5, {
        square(errors): "that is the mean of the squares, without its root",
        errors.abs().mean().item(): "that is the mean absolute error: square, take the mean, then the root",
        trained**0.5: "that is of the training rows",
        crossed**0.5: _SHAPES,
        crossed: _SHAPES,
    }


def _of_two_workers(ranks: list[dict[str, Any]]) -> None:
    """What each rank did after the crash: right epochs, the checkpoint's weights, own rows, equal weights."""
    for found in ranks:
        if found["epochs"][:1] == [0]:
            raise Wrong("after the crash it starts from epoch 0, and there is a checkpoint")
        if found["epochs"] != list(range(_CRASHES_AFTER, _EPOCHS)):
            raise Wrong(f"after a crash that followed epoch 1, it trains the epochs {found['epochs']}")
        if not _equal(found["first"], found["saved"]):
            raise Wrong(
                "after the crash it continues with the right epoch, but with new weights: load the checkpoint's"
            )
    for first, second in zip(*(found["rows"] for found in ranks), strict=True):
        if both := set(first) & set(second):
            raise Wrong(
                f"with two workers, both train on {_few(both)} in the same epoch: which call gives each its part?"
            )
        if first and len({*first, *second}) <= _ROWS // 2:
            raise Wrong("with two workers, half of the rows are in no epoch: are they divided twice?")
    if not _equal(ranks[0]["last"], ranks[1]["last"]):
        raise Wrong("with two workers, their weights differ: which call averages the gradients?")


def _fails_once(config: dict) -> list[dict[str, Any]]:
    """Run the loop, which fails after some reports unless it was restarted; return what each rank did."""
    import ray.train
    import torch

    report, start = ray.train.report, ray.train.get_checkpoint()
    saved = start.get_metadata()["weights"] if start else []  # now: Ray may delete a checkpoint later
    found: dict[str, Any] = {"epochs": [], "rows": [], "saved": saved}

    def failing(metrics: dict, checkpoint: Any = None, *args: Any, **options: Any) -> None:
        if checkpoint is not None:  # with the weights, whatever the learner saves
            checkpoint.update_metadata({"weights": _weights(seen.model)})
        report(metrics, checkpoint, *args, **options)
        found["epochs"].append(metrics["epoch"])
        found["rows"].append(list(seen.trained))
        seen.trained.clear()
        if start is None and len(found["epochs"]) == _CRASHES_AFTER:
            ray.train.get_all_reported_checkpoints()  # waits until Ray has taken in both reports
            raise OSError("the machine is gone")

    with _observing(config["train"].tensors[0], 1) as seen, reports_to(config["loop"], failing):
        config["loop"](config)
    found |= {"first": seen.first, "last": _weights(seen.model)}
    together: list = [None, None]
    torch.distributed.all_gather_object(together, found)
    return together


@LESSON.exercise(
    "10-4 · The same number twice",
    "Where does chance come in? In the first weights, and in the order of the rows.",
    "Seed before the model is built. A rank's part is every n-th row. Test rows come after the last epoch.",
    '`torch.manual_seed(config["seed"])`, `x[rank::world]`, and the loss of `config["test"]` under no_grad.',
    seconds=90,
    stuck="the ranks make different numbers of steps",
)
def _text(train_text: Any) -> None:
    import torch

    numbers = torch.Generator().manual_seed(0)
    start = torch.randperm(_TEXTS, generator=numbers)[:, None]  # no two rows are equal
    rows = 32 + (start + torch.arange(_LENGTH + 1)) % _TEXTS  # "cdefghijk": each letter gives the next one
    backwards = rows.flip(1)  # which the model has never seen, so its perplexity is high
    config = {"epochs": 6, "loop": train_text, "train": (rows[:, :-1].clone(), rows[:, 1:].clone())}
    config["test"] = (backwards[:, :-1].clone(), backwards[:, 1:].clone())
    found = []
    for value, right, near, ranks in returned(_repeated, {**config, "seeds": (0, 0, 1)}, name="train_text"):
        _shared([trained for trained, _ in ranks], config["epochs"])
        if not _equal(*(weights for _, weights in ranks)):
            raise Wrong(
                "after training, the ranks have different weights: `prepare_model` averages gradients"
            )
        other = f"the perplexity of the test rows is {right:.4g}: is it of all of them, after the last epoch?"
        close_to(value, right, rel=1e-3, what="what train_text returns", mistakes=near, otherwise=other)
        found.append(answers.number(value))
    if found[0] != found[1]:
        raise Wrong(f"the same seed gave {found[0]:.6g} and {found[1]:.6g}: what is drawn before it is set?")
    if found[0] == found[2]:
        raise Wrong("two seeds gave the same number: the seed of the config is not used")


def _shared(trained: list[list[int]], epochs: int) -> None:
    """Require that each rank has trained on every second row, once in each epoch."""
    first, second = map(set, trained)
    every = set(range(_TEXTS))
    if not first or not second:
        raise Wrong("a rank has not trained the model: leave the model unchanged")
    if max(first | second) >= _TEXTS:
        raise Wrong("it trains on the test rows, too")
    if first == second == every:
        raise Wrong(f"both ranks trained on all {_TEXTS} rows: each has its own half, the same in each epoch")
    if second <= first:
        raise Wrong(f"rank 1 trained on {_few(second)}, and those are rank 0's")
    if first & second:
        raise Wrong(f"both ranks trained on {_few(first & second)}")
    if left := every - first - second:
        raise Wrong(f"no rank trained on {_few(left)}")
    for rank, rows in enumerate(trained):
        if set(rows) != set(range(rank, _TEXTS, 2)):
            raise Wrong(
                f"rank {rank} trained on {_few(set(rows))}: every second row is expected, from {rank} on"
            )
        for row, times in Counter(rows).items():
            if times != epochs:
                raise Wrong(f"in {epochs} epochs, rank {rank} trained {times} times on row {row}")


def _repeated(config: dict) -> list[tuple]:
    """For each seed what the loop returns, its model's perplexity, what mistakes make of it.

    Then, of each rank, the rows that it trained on and its weights at the end.
    """
    import torch

    found = []
    for seed in config["seeds"]:
        torch.seed()  # as in a new process, which begins with other random numbers
        with _observing(torch.cat([config["train"][0], config["test"][0]]), 256) as seen:
            value = config["loop"]({**config, "seed": seed})
        found.append((value, *_perplexity(seen.model, config), (seen.trained, _weights(seen.model))))
    together: list = [None, None]
    torch.distributed.all_gather_object(together, [did for *_, did in found])
    return [(*mine, did) for (*mine, _), did in zip(found, zip(*together, strict=True), strict=True)]


def _perplexity(model: Any, config: dict) -> tuple[float, dict[float, str]]:
    """A model's perplexity on the test rows, and what mistakes make of it."""
    import torch

    if model is None:
        return 0.0, {}
    with torch.no_grad():
        test, train = (
            torch.nn.functional.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            for x, y in (config["test"], config["train"])
        )
    halves = [test[rank::2].mean().exp().item() for rank in (0, 1)]
    return test.mean().exp().item(), {
        test.mean().item(): "that is the loss: perplexity is e to the power of it",
        test.exp().mean().item(): "average the losses first: perplexity is e to the power of the mean loss",
        train.mean().exp().item(): "that is of the training rows",
        **dict.fromkeys(
            halves, "that is of half of the test rows: the rank that returns it uses all of them"
        ),
    }


@dataclass
class _Observed:
    """What PyTorch's hooks saw of a loop: its model, with which weights it began, the rows it trained on."""

    model: Any = None
    first: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)


@contextlib.contextmanager
def _observing(rows: Any, outputs: int) -> Iterator[_Observed]:
    """Observe the module that makes `outputs` numbers of such `rows`; a row counts once it gets a gradient."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook

    numbers, seen = {tuple(row): number for number, row in enumerate(rows.tolist())}, _Observed()

    def note(module: Any, inputs: tuple, output: Any) -> None:
        x = inputs[0] if inputs else None
        wrapper = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        if wrapper or not (isinstance(x, torch.Tensor) and isinstance(output, torch.Tensor)):
            return
        if x.shape[1:] != rows.shape[1:] or output.shape[-1:] != (outputs,):
            return
        seen.model = module
        seen.first = seen.first or _weights(module)
        if output.requires_grad:
            batch = [numbers[row] for row in map(tuple, x.tolist()) if row in numbers]
            output.register_hook(lambda _: seen.trained.extend(batch))

    hook = register_module_forward_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def _weights(model: Any) -> list[float]:
    return [] if model is None else [x for value in model.parameters() for x in value.flatten().tolist()]


def _equal(a: list[float], b: list[float]) -> bool:
    """Whether two models have the same weights, up to rounding."""
    return len(a) == len(b) and all(abs(x - y) <= 1e-5 * max(1, abs(x)) for x, y in zip(a, b, strict=True))


def _few(rows: set[int]) -> str:
    """The first of the rows, as text."""
    more = ", …" if len(rows) > 3 else ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, sorted(rows)[:3]))}{more}"
