"""Is the verdict right? Runs with a known cause, and healthy ones, and what the panel says of each.

    .venv/bin/python -m benchmarks verdicts [--repeat 2] [--only "slow rank" …] [--seed 48] [--keep FOLDER]

Each round has all cases once, and the healthy ones twice: a fault is built into the loop of one rank or of
all, in a run of a few seconds on two or three workers with one of three networks, the last of which is a
vision transformer of Hugging Face's. How many workers, which network and which rank comes from the seed,
before anything runs. Healthy runs take the same loop without a fault, half of them while another program
computes. For each run, the benchmark notes the first cause that the verdict names (the start, which
is long in so short a run, is left out), the rank, and the predicted seconds of an epoch. The same loop runs
without its fault before and afterwards, with a stopwatch of its own. The mean of the two is what the
prediction is compared with, since a machine is faster at some times than at others.

The last line is ``verdicts: ratio=…``: the share of runs whose verdict was wrong.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks._paired import Results, parser
from benchmarks._ray import trainer
from benchmarks._slow_folder import slow_folder
from labkit.local import cluster
from labkit.runs.record import RunRecord
from labkit.runs.verdict import verdict_of

# {case: (the cause that the verdict has to name, its detail, whether it is of one rank)}
CASES = {
    "slow rank, computing": ("slow rank", "computing", True),
    "slow rank, busy core": ("slow rank", "busy", True),
    "slow rank, more rows": ("slow rank", "rows", True),
    "slow store": ("data", "waiting", False),
    "slow rows on all ranks": ("data", "computing", False),
    "slow rows on one rank": ("data", "computing", True),
    "tiny batches": ("exchange", "", False),
    "slow upload": ("reports", "", False),
    "validation in the loop": ("validation", "", False),
    "leak": ("memory", "", False),
    "healthy": ("healthy", "", False),
    "healthy, busy machine": ("healthy", "", False),
}
HEALTHY = tuple(name for name, (cause, *_) in CASES.items() if cause == "healthy")
TAKES_NO_TIME = (*HEALTHY, "leak")
# What runs without the fault, where that isn't the healthy loop.
WITHOUT = {"slow rank, more rows": "equal rows", "tiny batches": "tiny batches without exchange"}
BATCHES = {"mlp": 256, "cnn": 64, "vit": 32}  # with these, a step of each network takes about as long
STEPS, EPOCHS = 40, 3
MANY = 3.0  # times the work of a healthy step


@dataclass(frozen=True)
class Case:
    """One run, fixed by the seed."""

    name: str
    workers: int
    network: str
    rank: int

    @property
    def without(self) -> str:
        """What is built into the loop instead of the fault."""
        return WITHOUT.get(self.name, "healthy")

    def __str__(self) -> str:
        return f"{self.name}, {self.workers} workers, {self.network}, rank {self.rank}"


def cases(rounds: int, seed: int) -> list[Case]:
    """All runs, in the order in which they are made."""
    draw = random.Random(seed)
    made = []
    for _ in range(rounds):
        for name in (*CASES, *HEALTHY):
            workers = draw.choice((2, 3))
            # The transformer computes longer than it exchanges, even for single rows.
            networks = [each for each in BATCHES if (name, each) != ("tiny batches", "vit")]
            made.append(Case(name, workers, draw.choice(networks), draw.randrange(workers)))
    return made


class Rows:
    """Random images; a fault makes each row slow."""

    def __init__(self, rows: int, slow: str, seconds: float) -> None:
        import torch

        self.images = torch.rand(rows, 1, 28, 28, generator=torch.Generator().manual_seed(0))
        self.labels = torch.arange(rows) % 10
        self.slow, self.seconds = slow, seconds

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Any:
        if self.slow == "waiting":
            time.sleep(self.seconds)
        elif self.slow == "computing":
            compute(self.seconds)
        return self.images[row], self.labels[row]


def compute(seconds: float) -> None:
    """Use the CPU for this long."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def network(name: str) -> Any:
    """Return a network whose step takes some milliseconds at the batch size of these runs."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10))
    if name == "vit":
        return vision_transformer()
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 11 * 11, 10),
    )


def vision_transformer() -> Any:
    """Return a small one of Hugging Face's, built offline."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = ViTConfig(image_size=28, patch_size=7, num_channels=1, num_labels=10, **sizes)
    return ViTForImageClassification(config)


def train_loop(config: dict[str, Any]) -> None:
    """Train for a few seconds; `config["fault"]` is a case, or what runs without its fault."""
    import ray.train
    import torch
    from ray.train.torch import prepare_model
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    rank, fault = ray.train.get_context().get_world_rank(), config["fault"]
    is_slow = rank == config["rank"]
    is_tiny = fault.startswith("tiny batches")
    batch = 4 if is_tiny else BATCHES[config["network"]]
    if fault == "slow rank, more rows" and is_slow:
        batch = round(MANY * batch)
    if fault == "equal rows":  # as many as with that fault
        world = ray.train.get_context().get_world_size()
        batch = round((MANY + world - 1) / world * batch)
    slow = {"slow store": "waiting", "slow rows on all ranks": "computing"}.get(fault, "")
    if fault == "slow rows on one rank" and is_slow:
        slow = "computing"
    steps = STEPS * (6 if is_tiny else 1)
    data = Rows(steps * batch, slow, 0.03 / batch)
    loader = DataLoader(data, batch_size=batch)
    test = DataLoader(Rows(64 * 40, "", 0.0), batch_size=64)
    model = prepare_model(network(config["network"]))
    exchange = contextlib.nullcontext if fault != WITHOUT["tiny batches"] else model.no_sync
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    busy = busy_core() if fault == "slow rank, busy core" and is_slow else contextlib.nullcontext()
    began = made = 0
    with busy:
        for epoch in range(EPOCHS):
            for x, y in loader:
                with exchange():
                    output = model(x)
                    loss = torch.nn.functional.cross_entropy(getattr(output, "logits", output), y)
                    if fault == "slow rank, computing" and is_slow:
                        compute(0.03)
                    optimizer.zero_grad()
                    loss.backward()
                optimizer.step()
                began = began or time.perf_counter()  # the first step is longer
                made += 1
                if fault == "leak":
                    kept.append(torch.ones(1_000_000))
            if fault == "validation in the loop":
                model.eval()
                with torch.no_grad():
                    for _ in range(5):
                        for x, _ in test:
                            model(x)
                model.train()
            seconds = (time.perf_counter() - began) / (made - 1) * steps
            with tempfile.TemporaryDirectory() as folder:
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
                metrics = {"epoch": epoch, "loss": float(loss), "stopwatch": seconds}
                ray.train.report(metrics, checkpoint=checkpoint)


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Two other programs on one core, to which this thread is bound."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})  # the programs inherit it
    with busy_machine(), busy_machine():
        yield
    os.sched_setaffinity(0, before)


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Another program, wherever there is a core."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        try:
            yield
        finally:
            program.kill()


def run(case: Case, *, fault: bool = True) -> RunRecord:
    """Make one run; return its record."""
    from labkit import runs
    from labkit.train import TrainPanel

    panel = TrainPanel("benchmark-verdicts")
    built_in = case.name if fault else case.without
    config = {"fault": built_in, "rank": case.rank, "network": case.network}
    upload = fault and case.name == "slow upload"
    options = {"name": panel.run_id, "storage_filesystem": slow_folder() if upload else None}
    busy = busy_machine() if fault and case.name == "healthy, busy machine" else contextlib.nullcontext()
    with busy, tempfile.TemporaryDirectory() as folder:
        made = trainer(train_loop, config, folder, workers=case.workers, **options)
        with panel.watch(made):
            made.fit()
    return runs.get(panel.run_id)


def seconds_per_epoch(record: RunRecord) -> float:
    """What rank 0's stopwatch had at the last report."""
    return record.history[-1]["stopwatch"]


def judge(case: Case, record: RunRecord) -> dict[str, Any]:
    """What the verdict names, and whether that is right."""
    said = verdict_of(record).to_json()
    first = next((cause for cause in said["causes"] if cause["name"] != "start"), None)
    named = first["name"] if first else "unknown" if said["verdict"] == "unknown" else "healthy"
    cause, _, of_rank = CASES[case.name]
    right = named == cause
    return {
        "case": case.name,
        "named": named,
        "right": right,
        "rank": None if not (of_rank and right) else first["rank"] == case.rank,
        "without": first["without"] if first and right else None,
        "sentence": said["sentence"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The confusion table: a row for each case, a column for each cause that was named."""
    names = [*dict.fromkeys([*(cause for cause, *_ in CASES.values()), "unknown"])]
    lines = [f"| injected | runs | {' | '.join(names)} | rank right |", f"|---|{'---|' * (len(names) + 2)}"]
    for case in CASES:
        of_case = [row for row in rows if row["case"] == case]
        if not of_case:
            continue
        named = Counter(row["named"] for row in of_case)
        ranks = [row["rank"] for row in of_case if row["rank"] is not None]
        cells = [str(named[name] or "") for name in names]
        share = f"{sum(ranks)} of {len(ranks)}" if ranks else ""
        lines.append(f"| {case} | {len(of_case)} | {' | '.join(cells)} | {share} |")
    return "\n".join(lines)


def compare(rows: list[dict[str, Any]]) -> str:
    """How the predicted seconds compare with those of the runs without the fault."""
    predicted = [row for row in rows if row["healthy_epoch"] and row["without"]]
    near = 0
    within = 0
    for row in predicted:
        best, low, high = row["without"]
        near += abs(best / row["healthy_epoch"] - 1) <= 0.15
        within += low <= row["healthy_epoch"] <= high
    return f"predictions: {near} of {len(predicted)} within 15 %, {within} within their band"


def measure(case: Case) -> dict[str, Any]:
    """Make the run of a case, and those without its fault; return what is kept of them."""
    if case.name in TAKES_NO_TIME:
        return {"record": json.loads(run(case).to_json()), "healthy_epoch": None}
    before = run(case, fault=False)
    record = run(case)
    after = run(case, fault=False)
    healthy_epoch = mean([seconds_per_epoch(before), seconds_per_epoch(after)])
    return {"record": json.loads(record.to_json()), "healthy_epoch": healthy_epoch}


def main() -> None:
    options = parser(__doc__, repeat=10)
    options.add_argument("--seed", type=int, default=48)
    options.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="only these cases")
    options.add_argument("--keep", type=Path, help="a folder for the runs; a later call skips those")
    options = options.parse_args()
    os.environ["LABKIT_PANEL"] = "none"
    rows, results = [], Results("verdicts", ours="verdict")
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    with cluster.start(cpus_per_node=4):
        for number, case in enumerate(cases(options.repeat, options.seed)):
            if case.name not in options.only:
                continue
            file = folder / f"{options.seed}-{number:03}.json"
            if not file.exists():
                file.write_text(json.dumps(measure(case)))
            kept = json.loads(file.read_text())
            row = judge(case, RunRecord.from_json(json.dumps(kept["record"])))
            row["healthy_epoch"] = kept["healthy_epoch"]
            rows.append(row)
            print(f"{'right' if row['right'] else 'WRONG'}  {case}: {row['sentence']}", flush=True)
            if row["healthy_epoch"]:
                print(f"       without it, an epoch took {row['healthy_epoch']:.2f} s", flush=True)
    print(f"\n{table(rows)}\n\n{compare(rows)}")
    results.details["rows"] = rows
    wrong = sum(not row["right"] for row in rows)
    results.finish(wrong / max(len(rows), 1), json=options.json)


if __name__ == "__main__":
    main()
