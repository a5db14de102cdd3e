"""The cost of following a run: stretches of steps with the panel and without it, in turn, in one run.

    .venv/bin/python -m benchmarks reporting [--repeat 200] [--seconds 0.3] [--json FILE]

Two workers train lesson 03's two models on the digits. Each round has three stretches: one is
followed by the panel's hooks, two are not. Their order changes with each round, and they
are short, so that a machine that slows down for a while hits all alike. The panel is the widget one, drawn in
this process. The figure is the median over the rounds of time with / mean time without, once for the clock on
the wall, and once for the CPU time of rank 0, which other processes disturb less. Next to them is the same
median for the two stretches without: what this machine makes of nothing at all. The last line is
``reporting: ratio=…``, time with over time without, of the model for which it is larger.
"""

import contextlib
import io
import itertools
import os
import statistics
import tempfile
import time

from benchmarks._paired import Results, parser
from benchmarks._ray import trainer
from course import datasets
from labkit.local import cluster

_FIRST_EPOCHS = 3  # of a stretch, which are not measured: a run has its first steps once
_WAYS = ("with", "without", "again")  # with the panel, and twice without it


def train_loop(config):
    import torch
    from ray.train.torch import prepare_model
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks._models import mlp, to_input
    from course.models.torch import cnn
    from labkit.worker.hooks import current, following

    current().leave()  # stretches are followed by hooks of their own
    data = config["data"]
    rows = TensorDataset(to_input(data.images), torch.tensor(data.labels))
    model = prepare_model({"cnn": cnn, "mlp": mlp}[config["model"]](seed=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for x, y in DataLoader(rows, batch_size=64):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def stretch(epochs: int, followed: bool) -> tuple[float, float]:
        with following(config["tracker"]) if followed else contextlib.nullcontext():
            for _ in range(_FIRST_EPOCHS):
                train()
            began = time.perf_counter()
            cpu_began = time.process_time()
            for _ in range(epochs):
                train()
            return time.perf_counter() - began, time.process_time() - cpu_began

    stretch(2, followed=True)
    seconds_of_epoch = stretch(3, followed=False)[0] / 3
    # All ranks must make equally many steps, so rank 0 decides the length of a stretch.
    epochs = torch.tensor(max(1, round(config["seconds"] / seconds_of_epoch)))
    torch.distributed.broadcast(epochs, src=0)
    seconds = {way: [] for way in _WAYS}
    orders = itertools.cycle(itertools.permutations(_WAYS))
    for order in itertools.islice(orders, config["rounds"]):
        for way in order:
            seconds[way].append(stretch(int(epochs), followed=way == "with"))
    return int(epochs), seconds


def measure(model: str, results: Results, *, rounds: int, seconds: float) -> float:
    """Print the cost of reporting for one model, and return its ratio."""
    from labkit.train import TrainPanel

    train = datasets.load(split="train")
    panel = TrainPanel(f"benchmark-reporting-{model}", dataset=train.name, rows=len(train))
    config = {"tracker": panel.tracker, "model": model, "rounds": rounds, "seconds": seconds, "data": train}
    # The widgets' own place is a notebook; here their text form would be in the way.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        made = trainer(train_loop, config, folder, name=panel.run_id)
        with panel.watch(made):
            epochs, stretches = made.fit().return_value
    print(f"{model}: {epochs} epochs in each stretch, {rounds} rounds of three")
    for place, clock in enumerate(("wall clock", "CPU time")):
        taken = {way: [clocks[place] for clocks in stretches[way]] for way in _WAYS}
        results.seconds[f"{model}, {clock}"] = taken
        bare = list(map(statistics.mean, zip(taken["without"], taken["again"], strict=True)))
        print(f"  {clock}, with the panel: {_difference(taken['with'], bare)}")
        print(f"  {clock}, without, twice: {_difference(taken['again'], taken['without'])}")
    return results.ratio(f"{model}, wall clock", "without")


def _difference(seconds: list[float], bare: list[float]) -> str:
    """Format by how much `seconds` exceed `bare`: the median of the pairs, and its standard error."""
    pairs = zip(seconds, bare, strict=True)
    cost = [100 * (more / less - 1) for more, less in pairs]
    low, middle, high = statistics.quantiles(cost, n=4)
    # Of a median of n normal values it is 1.25 sigma / sqrt(n); sigma is taken from the quartiles.
    error = 1.25 * (high - low) / 1.35 / len(cost) ** 0.5
    return f"{middle:+.2f} % (standard error {error:.2f})"


def main() -> None:
    options = parser(__doc__, repeat=200)
    options.add_argument("--seconds", type=float, default=0.3, help="of one stretch (default 0.3)")
    options = options.parse_args()
    os.environ["LABKIT_PANEL"] = "widgets"  # the more expensive reporter: it draws
    results = Results("reporting", ours="with")
    with cluster.start():
        ratios = [
            measure(model, results, rounds=options.repeat, seconds=options.seconds)
            for model in ("cnn", "mlp")
        ]
    results.finish(max(ratios), json=options.json)


if __name__ == "__main__":
    main()
