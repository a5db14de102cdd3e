"""Lesson 10: a leak, a difference and its error, a loop for a table, and a run that is repeatable."""

from collections.abc import Callable
from typing import Any

from labkit.exercises import answers
from labkit.exercises.answers import Wrong, close_to, describe, expect_type, result_of
from labkit.exercises.registry import Lesson
from labkit.exercises.running import returned, run_loop
from labkit.panel.tracking.hooks import reports_to

LESSON = Lesson("10", "Your own experiment")
_EPOCHS, _CRASHES_AFTER, _NOISE = 4, 2, 5.0
_TOKENS, _LENGTH = 96, 8  # rows of text, and tokens of a row


@LESSON.exercise(
    "10-1 · A leak",
    "What is drawn at random here: a photograph, or a fruit?",
    "`np.unique(fruits)` has each fruit once. Draw those, then look up which photographs are of one of them.",
    "`chosen = different[numbers.random(len(different)) < share]`, then `np.isin(fruits, chosen)`.",
)
def _for_testing(for_testing: Any) -> None:
    import numpy as np

    fruits = np.random.default_rng(1).permutation(np.repeat(np.arange(1000, 1400), 5))
    masks = []
    for wanted, seed in ((0.25, 0), (0.25, 0), (0.25, 1), (0.5, 0)):
        answer = result_of(for_testing, fruits, wanted, seed, what="for_testing")
        mask = answers.array_of(answer, shape=fruits.shape)
        if mask.dtype != bool:
            raise Wrong(f"for_testing returns {mask.dtype}; True or False for each photograph is expected")
        if both := len(np.intersect1d(fruits[mask], fruits[~mask])):
            raise Wrong(f"{both} of 400 fruits have photographs on both sides")
        masks.append(mask)
        share = len(np.unique(fruits[mask])) / 400
        if abs(share - wanted) > 0.1:
            raise Wrong(f"{share:.0%} of the fruits are for testing, and the share is {wanted:.0%}")
    if (masks[0] != masks[1]).any():
        raise Wrong("the same seed gives a different division: draw with numbers made from the seed")
    if (masks[0] == masks[2]).all():
        raise Wrong("two seeds give the same division: the seed is not used")


@LESSON.exercise(
    "10-2 · Is it a difference?",
    "Three steps: the standard deviation of each arm, the standard error of each mean, and their sum.",
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
        right = mean(b) - mean(a)
        close_to(answer[0], right, what="the difference", mistakes={-right: "that is a minus b"})
        of_a, of_b, n, m = stdev(a), stdev(b), len(a), len(b)
        wrong = {
            hypot(pstdev(a) / n**0.5, pstdev(b) / m**0.5): "of a few runs, divide by n - 1: ddof=1",
            hypot(of_a, of_b): "that is without the number of runs: the more, the smaller",
            of_a / n**0.5 + of_b / m**0.5: "add the squares, and take the root",
            of_a**2 / n + of_b**2 / m: "take the root of that",
            hypot(of_a / n, of_b / m): "divide by the square root of the number of runs",
        }
        right = hypot(of_a / n**0.5, of_b / m**0.5)
        close_to(answer[1], right, what="the standard error", mistakes=wrong)


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
    rows = torch.utils.data.TensorDataset(x[:320], y[:320])
    config = {"epochs": _EPOCHS, "train": rows, "valid": (x[320:], y[320:])}
    _, reports = run_loop(train_table, config, name="train_table")
    if len(reports) != _EPOCHS:
        raise Wrong(f"in {_EPOCHS} epochs, the loop reported {len(reports)} times")
    for epoch, (metrics, checkpoint) in enumerate(reports):
        near = {epoch + 1: "epochs are counted from 0"}
        close_to(metrics.get("epoch"), epoch, what="the metric epoch", mistakes=near)
        rmse = answers.number(metrics.get("rmse"), "the metric rmse")
        if checkpoint is None:
            raise Wrong("a report came without a checkpoint")
    if rmse > 20:
        blind = abs(rmse - y.std().item()) < 15
        likely = "does `model(x)`, [n, 1], meet y, [n]?" if blind else "is the learning rate large enough?"
        if rmse < 2 * _NOISE**2:
            likely = "is that the mean of the squares, without its root?"
        raise Wrong(f"the last rmse is {rmse:.3g}, and {_NOISE:g} is possible: {likely}")
    if rmse < _NOISE / 2:
        raise Wrong(f"the last rmse is {rmse:.3g}, less than the noise in y: is it of the validation rows?")
    options = {"name": "train_table", "max_failures": 1, "checkpoint_config": keep}
    epochs = returned(_fails_once, {**config, "loop": train_table}, store=store, **options)
    if epochs[:1] == [0]:
        raise Wrong("after the crash it starts from epoch 0, and there is a checkpoint")
    if epochs != list(range(_CRASHES_AFTER, _EPOCHS)):
        raise Wrong(f"after a crash that followed epoch 1, it trains the epochs {epochs}")


def _fails_once(config: dict) -> list[int]:
    """Run the loop, which fails after some reports unless it was restarted; return the epochs reported."""
    import ray.train

    report, epochs = ray.train.report, []
    fresh = ray.train.get_checkpoint() is None

    def failing(metrics: dict, *args: Any, **options: Any) -> None:
        report(metrics, *args, **options)
        epochs.append(metrics["epoch"])
        if fresh and len(epochs) == _CRASHES_AFTER:
            ray.train.get_all_reported_checkpoints()  # waits until Ray has taken in both reports
            raise OSError("the machine is gone")

    with reports_to(config["loop"], failing):
        config["loop"](config)
    return epochs


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
    start = torch.randint(97, 122, (_TOKENS, 1), generator=numbers)
    rows = 97 + (start - 97 + torch.arange(_LENGTH + 1)) % 26  # "cdefghijk": each letter gives the next one
    backwards = rows.flip(1)  # which the model has never seen, so its perplexity is high
    config = {"epochs": 6, "loop": train_text, "train": (rows[:, :-1].clone(), rows[:, 1:].clone())}
    config["test"] = (backwards[:, :-1].clone(), backwards[:, 1:].clone())
    found = []
    for value, steps in returned(_counting, {**config, "seeds": (0, 0, 1)}, name="train_text"):
        found.append(answers.number(value, "what train_text returns"))
        if steps != _TOKENS // 2 // 16 * config["epochs"]:
            raise Wrong(f"a rank made {steps} steps: each of two trains on its own half of {_TOKENS} rows")
    if found[0] != found[1]:
        raise Wrong(f"the same seed gave {found[0]:.6g} and {found[1]:.6g}: what is drawn before it is set?")
    if found[0] == found[2]:
        raise Wrong("two seeds gave the same number: the seed of the config is not used")
    if found[0] < 100:
        raise Wrong(f"a perplexity of {found[0]:.3g} comes from the training rows, or it is a loss")


def _counting(config: dict) -> list[tuple[Any, int]]:
    """For each seed what the loop returns, and how many steps its optimizer made."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    steps: list[None] = []
    count: Callable = lambda *_: steps.append(None)  # noqa: E731
    hook, found = register_optimizer_step_pre_hook(count), []
    try:
        for seed in config["seeds"]:
            steps.clear()
            torch.seed()  # as in a new process, which begins with other random numbers
            found.append((config["loop"]({**config, "seed": seed}), len(steps)))
    finally:
        hook.remove()
    return found
