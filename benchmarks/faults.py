"""The object store is killed at random moments: what is left, and does the work go on?

    .venv/bin/python -m benchmarks faults [--repeat 20] [--seed 0] [--only upload|checkpoint] [--json FILE]

Each kill is a SIGKILL of the lab's own S3 server: in the middle of an upload of images, or while a training
writes its checkpoints. It has gone well if
- what was running ends with an error that names the store;
- after `storage.start()` all that the store had confirmed is there, byte for byte, and nothing half;
- the newest checkpoint that Ray offers is whole, and is no older than the last that was reported;
- the upload and the training, begun again as they were, go on from there to their end.

The last line is ``faults: ratio=…``, the part of the kills that did not go well.

Instead of that, ``--campaign N`` makes N runs with any fault of `course.faults`.
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

from benchmarks import _campaign
from benchmarks._paired import Results, parser
from course import datasets
from labkit.errors import LabError
from labkit.local import cluster, family, storage
from labkit.local.lab import Lab
from labkit.settings import Settings

_EPOCHS = 4  # that are still to be trained when a training goes on
_CHECKPOINT = 12 << 20  # bytes: it goes in two parts, and takes long enough to be hit


class Lost(Exception):
    """A promise that does not hold after a kill."""


def kill_in_an_upload(rng: random.Random, settings: Settings) -> str:
    """Kill the server while images are sent; return a line about what happened."""
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
            raised_at = time.monotonic()
            _require_the_store(error, store)
        else:  # those that were on their way may have been the last ones
            if len(committed) < len(images):
                raise Lost("the upload ended well without its store")
        killer.join()
    store = storage.start(settings=settings)
    _all_there(store, committed)
    path = _upload(images, store, prefix)
    if len(store.files.find(path)) != len(images):
        raise Lost("after the second upload not everything is there")
    store.files.rm(path, recursive=True)
    return (
        f"killed after {wait_for} of {len(images)} objects, raised {raised_at - killer.at:.1f} s later;"
        f" the {len(committed)} that were committed were there, and a second upload sent all"
    )


def kill_in_a_checkpoint(rng: random.Random, settings: Settings) -> str:
    """Kill the server while a run saves checkpoints; return a line about what happened."""
    from ray.train import Result

    from labkit.train import TrainPanel

    store = storage.start(settings=settings)
    name = f"kill-{rng.getrandbits(32):08x}"
    path = store.storage_path("faults", name)
    panel = TrainPanel(name, settings=settings)
    wait_for = rng.randrange(4)
    killer = _Killer(lambda: len(panel.state.checkpoints) >= wait_for, rng.uniform(0, 1.0), settings)
    # An epoch lasts 0.2 s and the upload some tenths more, so a moment within a second hits all there is.
    trainer = _trainer(store, name, epochs=1000)
    try:
        with panel.watch(trainer):
            trainer.fit()
    except LabError as error:
        raised_at = time.monotonic()
        _require_the_store(error, store)
    else:
        raise Lost("the training went on without its store")
    killer.join()
    reported = [point.metrics["epoch"] for point in panel.state.checkpoints]
    store = storage.start(settings=settings)
    newest = -1
    # Before the first checkpoint is committed there is no list of them, and nothing that could be lost.
    if store.files.exists(f"{path}/checkpoint_manager_snapshot.json"):
        result = Result.from_path(path, storage_filesystem=store.filesystem)
        newest = max((_epoch_of(checkpoint) for checkpoint, _ in result.best_checkpoints), default=-1)
        if result.checkpoint is not None and _epoch_of(result.checkpoint) != newest:
            raise Lost(f"the latest is epoch {_epoch_of(result.checkpoint)}, and there is epoch {newest}")
    if newest < max(reported, default=-1):
        raise Lost(f"epoch {max(reported)} was reported as kept, and the newest in the store is {newest}")
    panel = TrainPanel(name, settings=settings)
    epochs = newest + 1 + _EPOCHS
    trainer = _trainer(store, name, epochs=epochs)
    with panel.watch(trainer):
        result = trainer.fit()
    if _epoch_of(result.checkpoint) != epochs - 1 or result.metrics["first"] != newest + 1:
        raise Lost(f"it should go on with epoch {newest + 1}, and did so with {result.metrics['first']}")
    store.files.rm(path, recursive=True)
    return (
        f"killed after {len(reported)} checkpoints, raised {raised_at - killer.at:.1f} s later;"
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

    rank = ray.train.get_context().get_world_rank()
    checkpoint = ray.train.get_checkpoint()
    first = _epoch_of(checkpoint) + 1 if checkpoint else 0
    for epoch in range(first, config["epochs"]):
        time.sleep(0.2)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                weights = random.Random(epoch).randbytes(_CHECKPOINT)
                Path(folder, "weights.bin").write_bytes(weights)
                state = {"epoch": epoch, "sha256": hashlib.sha256(weights).hexdigest()}
                Path(folder, "state.json").write_text(json.dumps(state))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "first": first}, checkpoint=checkpoint)


def _epoch_of(checkpoint: Any) -> int:
    """Return the epoch of a checkpoint that is whole."""
    with checkpoint.as_directory() as folder:
        state = json.loads(Path(folder, "state.json").read_text())
        weights = Path(folder, "weights.bin").read_bytes()
    if hashlib.sha256(weights).hexdigest() != state["sha256"]:
        raise Lost(f"the checkpoint of epoch {state['epoch']} is not what was saved")
    return state["epoch"]


# -- what is looked at ------------------------------------------------------------------------------


class _Killer(threading.Thread):
    """Kills the object server some seconds after a condition has come true."""

    def __init__(self, ready: Callable[[], bool], after: float, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._ready = ready
        self._after = after
        self.at = 0.0
        (server,) = Lab(settings.home).running(family.STORE)
        self._pid = server.pid
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
    objects = {f"{path}/{row:05}": image.tobytes() for row, image in enumerate(images.images)}
    with store.explained(f"upload to {path}"):
        store.files.pipe(objects)
    return path


@contextlib.contextmanager
def _noting_puts(store: storage.Store, committed: dict[str, str]) -> Iterator[list[Callable[[], object]]]:
    """Note each object that the store has confirmed, with the MD5 of what was sent.

    Yields a list for functions that are called after each of them; the next objects wait for these.
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


def _require_the_store(error: LabError, store: storage.Store) -> None:
    if store.endpoint not in str(error):
        raise Lost(f"the error does not name the store: {error}")


# -- all of it --------------------------------------------------------------------------------------

_KILLS = {"upload": kill_in_an_upload, "checkpoint": kill_in_a_checkpoint}


def main() -> None:
    options = parser(__doc__, repeat=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=_KILLS)
    options.add_argument("--campaign", type=int, metavar="N", help="N runs with any fault of course.faults")
    options.add_argument("--first", type=int, metavar="K", help="the first of them (default 0)", default=0)
    options = options.parse_args()
    if options.campaign:
        numbers = range(options.first, options.first + options.campaign)
        sys.exit(_campaign.report(numbers, options.seed) > 0)
    settings = Settings.from_env()
    kills = {moment: kill for moment, kill in _KILLS.items() if options.only in (None, moment)}
    results = Results("faults", ours="")
    lost = 0
    with cluster.start(settings=settings), storage.start(settings=settings):
        for moment, kill in kills.items():
            rng = random.Random(options.seed)
            for number in range(1, options.repeat + 1):
                began = time.monotonic()
                try:
                    line = kill(rng, settings)
                except Exception as error:
                    line = f"LOST: {type(error).__name__}: {error}"
                    lost += 1
                print(f"{moment} {number}: {line}", flush=True)
                results.add(moment, {"a kill and what follows": time.monotonic() - began})
    total = len(kills) * options.repeat
    print(f"{total - lost} of {total} went well")
    results.finish(lost / total, json=options.json)


if __name__ == "__main__":
    main()
