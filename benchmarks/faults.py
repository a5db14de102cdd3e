"""The object store is killed at random moments: what is left, and does the work go on?

    .venv/bin/python -m benchmarks faults [--repeat 20] [--seed 0] [--only upload|checkpoint] [--json FILE]

Each kill is a SIGKILL of the lab's own S3 server: in the middle of an upload of images, or while a training
writes its checkpoints. It has gone well if
- what was running ends with an error that names the store;
- after `storage.start()` all that the store had said yes to is there, byte for byte, and nothing half;
- the newest checkpoint that Ray offers is whole, and is no older than the last that was reported;
- the upload and the training, begun again as they were, go on from there to their end.

The last line is ``faults: ratio=…``, the part of the kills that did not go well.

Instead of that: ``--campaign N`` makes N runs with any fault of `course.faults`; ``--arms N`` counts the
steps that a preemption costs, for three ways of saving and N seeds.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import _campaign, _recovery
from benchmarks._paired import Found, parser
from course import datasets
from labkit.errors import LabError
from labkit.local import cluster, family, storage
from labkit.settings import Settings

_EPOCHS = 4  # that are still to be trained when a training goes on
_CHECKPOINT = 12 << 20  # bytes: it goes in two parts, and takes long enough to be hit


class Lost(Exception):
    """Something that must hold after a kill does not."""


def kill_in_an_upload(rng: random.Random, settings: Settings) -> str:
    """Kill the server while images are sent; returns what happened in a line."""
    store = storage.start(settings=settings)
    images = datasets.load("digits", n=400)
    prefix = f"kill-{rng.getrandbits(32):08x}"
    committed: dict[str, str] = {}
    with _noting_puts(store, committed) as pausing:
        wait_for = rng.randrange(1, len(images))
        # The moment is a number of objects, and a little more, in which nothing else is sent: so the kill is
        # always in the middle, however busy the machine is.
        killer = _Killer(lambda: len(committed) >= wait_for, rng.uniform(0, 0.005), settings)
        pausing.append(lambda: len(committed) >= wait_for and killer.join())
        try:
            _upload(images, store, prefix)
        except LabError as error:
            told = time.monotonic()
            _named(error, store)
        else:
            raise Lost("the upload ended well without its store")
        killer.join()
    store = storage.start(settings=settings)
    _all_there(store, committed)
    path = _upload(images, store, prefix)
    if len(store.files.find(path)) != len(images):
        raise Lost("after the second upload not everything is there")
    store.files.rm(path, recursive=True)
    return (
        f"killed after {wait_for} of {len(images)} objects, told {told - killer.at:.1f} s later;"
        f" the {len(committed)} that were committed were there, and a second upload sent all"
    )


def kill_in_a_checkpoint(rng: random.Random, settings: Settings) -> str:
    """Kill the server while a training saves checkpoints; returns what happened in a line."""
    from ray.train import Result

    from labkit.train import TrainPanel

    store = storage.start(settings=settings)
    name = f"kill-{rng.getrandbits(32):08x}"
    path = store.storage_path("faults", name)
    panel = TrainPanel(name, settings=settings)
    wait_for = rng.randrange(4)
    killer = _Killer(lambda: len(panel.state.checkpoints) >= wait_for, rng.uniform(0, 1.0), settings)
    # An epoch lasts 0.2 s and the upload some tenths more, so a moment within a second hits all there is.
    try:
        with panel.watch(trainer := _trainer(store, name, epochs=1000)):
            trainer.fit()
    except LabError as error:
        told = time.monotonic()
        _named(error, store)
    else:
        raise Lost("the training went on without its store")
    killer.join()
    said = [point.metrics["epoch"] for point in panel.state.checkpoints]
    store = storage.start(settings=settings)
    newest = -1
    # Before the first checkpoint is committed there is no list of them, and nothing that could be lost.
    if store.files.exists(f"{path}/checkpoint_manager_snapshot.json"):
        result = Result.from_path(path, storage_filesystem=store.filesystem)
        newest = max((_epoch_of(checkpoint) for checkpoint, _ in result.best_checkpoints), default=-1)
        if result.checkpoint is not None and _epoch_of(result.checkpoint) != newest:
            raise Lost(f"the latest is epoch {_epoch_of(result.checkpoint)}, and there is epoch {newest}")
    if newest < max(said, default=-1):
        raise Lost(f"epoch {max(said)} was reported as kept, and the newest in the store is {newest}")
    panel = TrainPanel(name, settings=settings)
    epochs = newest + 1 + _EPOCHS
    with panel.watch(trainer := _trainer(store, name, epochs=epochs)):
        result = trainer.fit()
    if _epoch_of(result.checkpoint) != epochs - 1 or result.metrics["first"] != newest + 1:
        raise Lost(f"it should go on with epoch {newest + 1}, and did so with {result.metrics['first']}")
    store.files.rm(path, recursive=True)
    return (
        f"killed after {len(said)} checkpoints, told {told - killer.at:.1f} s later;"
        f" newest whole one: epoch {newest}; went on from there to epoch {epochs - 1}"
    )


# -- the training ----------------------------------------------------------------------------------


def _trainer(store: storage.Store, name: str, *, epochs: int) -> Any:
    from ray.train import CheckpointConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(
        _loop,
        train_loop_config={"epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=name,
            storage_path=store.storage_path("faults"),
            storage_filesystem=store.filesystem,
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
    )


def _loop(config: dict[str, Any]) -> None:
    import ray.train

    rank, first = ray.train.get_context().get_world_rank(), 0
    if checkpoint := ray.train.get_checkpoint():
        first = _epoch_of(checkpoint) + 1
    for epoch in range(first, config["epochs"]):
        time.sleep(0.2)
        with tempfile.TemporaryDirectory() as folder:
            kept = None
            if rank == 0:
                body = random.Random(epoch).randbytes(_CHECKPOINT)
                Path(folder, "weights.bin").write_bytes(body)
                about = {"epoch": epoch, "sha256": hashlib.sha256(body).hexdigest()}
                Path(folder, "about.json").write_text(json.dumps(about))
                kept = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "first": first}, checkpoint=kept)


def _epoch_of(checkpoint: Any) -> int:
    """The epoch of a checkpoint that is whole."""
    with checkpoint.as_directory() as folder:
        about = json.loads(Path(folder, "about.json").read_text())
        body = Path(folder, "weights.bin").read_bytes()
    if hashlib.sha256(body).hexdigest() != about["sha256"]:
        raise Lost(f"the checkpoint of epoch {about['epoch']} is not what was saved")
    return about["epoch"]


# -- what is looked at ------------------------------------------------------------------------------


class _Killer(threading.Thread):
    """Kills the object server some seconds after a condition has come true."""

    def __init__(self, ready: Callable[[], bool], after: float, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._ready, self._after = ready, after
        self.at = 0.0
        (self._pid,) = [one.pid for one in family.running(settings.home, family.STORE)]
        self.start()

    def run(self) -> None:
        while not self._ready():
            time.sleep(0.001)
        time.sleep(self._after)
        self.at = time.monotonic()
        os.kill(self._pid, signal.SIGKILL)


def _upload(images: datasets.Dataset, store: storage.Store, prefix: str) -> str:
    """Send each image as an object, and return the path that all of them are below."""
    path = f"{store.bucket('faults')}/{prefix}"
    with store.explained(f"upload to {path}"):
        store.files.pipe({f"{path}/{row:05}": image.tobytes() for row, image in enumerate(images.images)})
    return path


@contextlib.contextmanager
def _noting_puts(store: storage.Store, committed: dict[str, str]) -> Iterator[list[Callable[[], object]]]:
    """Note each object that the store has said yes to, with the MD5 of what was sent.

    Yields what is called after each of them; the next ones wait for that.
    """
    after: list[Callable[[], object]] = []
    files = store.files
    before = files._call_s3

    async def call(method: str, *args: Any, **options: Any) -> Any:
        answer = await before(method, *args, **options)
        if method == "put_object":
            body = options["Body"]
            committed[f"{options['Bucket']}/{options['Key']}"] = hashlib.md5(body).hexdigest()
            for do in after:
                do()
        return answer

    files._call_s3 = call
    try:
        yield after
    finally:
        del files._call_s3


def _all_there(store: storage.Store, committed: dict[str, str]) -> None:
    for path, md5 in committed.items():
        if not store.files.exists(path):
            raise Lost(f"{path} was sent, and is not there")
        if hashlib.md5(store.files.cat_file(path)).hexdigest() != md5:
            raise Lost(f"{path} is not what was sent")


def _named(error: LabError, store: storage.Store) -> None:
    if store.endpoint not in str(error):
        raise Lost(f"the error does not name the store: {error}")


# -- all of it --------------------------------------------------------------------------------------

_KINDS = {"upload": kill_in_an_upload, "checkpoint": kill_in_a_checkpoint}


def main() -> None:
    options = parser(__doc__, repeat=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=_KINDS)
    options.add_argument("--campaign", type=int, metavar="N", help="N runs with any fault of course.faults")
    options.add_argument("--first", type=int, metavar="K", help="the first of them (default 0)", default=0)
    options.add_argument("--arms", type=int, metavar="N", help="steps lost in three arms, N seeds")
    options = options.parse_args()
    numbers = range(options.first, options.first + (options.arms or options.campaign or 0))
    if options.arms:
        return _recovery.arms(numbers, Settings.from_env())
    if options.campaign:
        sys.exit(_campaign.report(numbers, options.seed) > 0)
    settings = Settings.from_env()
    kinds = {kind: kill for kind, kill in _KINDS.items() if options.only in (None, kind)}
    found, lost = Found("faults", ours=""), 0
    with cluster.start(settings=settings), storage.start(settings=settings):
        for kind, kill in kinds.items():
            rng = random.Random(options.seed)
            for number in range(1, options.repeat + 1):
                began = time.monotonic()
                try:
                    said = kill(rng, settings)
                except Exception as error:
                    said = f"LOST: {type(error).__name__}: {error}"
                    lost += 1
                print(f"{kind} {number}: {said}", flush=True)
                found.add(kind, {"a kill and what follows": time.monotonic() - began})
    total = len(kinds) * options.repeat
    print(f"{total - lost} of {total} went well")
    found.finish(lost / total, json=options.json)


if __name__ == "__main__":
    main()
