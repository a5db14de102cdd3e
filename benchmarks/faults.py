"""The object store is killed at random moments: what is left, and does the work go on?

    .venv/bin/python -m benchmarks faults [--repeat 20] [--seed 0] [--json FILE]

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
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import _campaign
from benchmarks import _campaign_runs as runs
from benchmarks._campaign_runs import Broken
from benchmarks._paired import Results, parser
from course import datasets
from labkit.errors import LabError
from labkit.local import cluster, family, storage
from labkit.local.lab import Lab
from labkit.settings import Settings

_EPOCHS = 4  # that are still to be trained when a training goes on
_CHECKPOINT = 12 << 20  # bytes: it goes in two parts, and takes long enough to be hit


def kill_in_an_upload(rng: random.Random) -> str:
    """Kill the server while images are sent; return a line about what happened."""
    store = storage.start()
    images = datasets.load("digits", n=400)
    prefix = f"kill-{rng.getrandbits(32):08x}"
    committed: dict[str, str] = {}
    wait_for = rng.randrange(1, len(images))
    # The moment is a number of objects, and a little more, in which nothing else is sent: so the kill is
    # always in the middle, however busy the machine is.
    killer = _kill_when(lambda: len(committed) >= wait_for, rng.uniform(0, 0.005))

    def pause() -> None:
        if len(committed) >= wait_for:
            killer.join()

    with _noting_puts(store, committed, pause):
        try:
            _upload(images, store, prefix)
        except LabError as error:
            _require_the_store(error, store)
        else:  # those that were on their way may have been the last ones
            if len(committed) < len(images):
                raise Broken("the upload ended well without its store")
    killer.join()
    store = storage.start()
    for path, md5 in committed.items():
        if hashlib.md5(store.files.cat_file(path)).hexdigest() != md5:
            raise Broken(f"{path} is not what was sent")
    path = _upload(images, store, prefix)
    if len(store.files.find(path)) != len(images):
        raise Broken("after the second upload not everything is there")
    store.files.rm(path, recursive=True)
    return (
        f"killed after {wait_for} of {len(images)} objects;"
        f" the {len(committed)} that were committed were there, and a second upload sent all"
    )


def kill_in_a_checkpoint(rng: random.Random) -> str:
    """Kill the server while a run saves checkpoints; return a line about what happened."""
    store = storage.start()
    name = f"kill-{rng.getrandbits(32):08x}"
    config = {"kind": "torch", "log": os.devnull, "steps": 20}
    # An epoch lasts 0.2 s and the upload some tenths more, so a moment within a second hits all there is.
    panel, fit = runs.train(name, config | {"epochs": 1000}, store, failures=0, size=_CHECKPOINT)
    wait_for = rng.randrange(4)
    killer = _kill_when(lambda: len(panel.state.checkpoints) >= wait_for, rng.uniform(0, 1.0))
    try:
        with panel:
            fit()
    except LabError as error:
        _require_the_store(error, store)
    else:
        raise Broken("the training went on without its store")
    killer.join()
    reported = [point.metrics["epoch"] for point in panel.state.checkpoints]
    store = storage.start()
    newest = max((runs.load(kept.checkpoint)[0] - 1 for kept in runs.listed(name, store)), default=-1)
    if newest < max(reported, default=-1):
        raise Broken(f"epoch {max(reported)} was reported as kept, and the newest in the store is {newest}")
    epochs = newest + 1 + _EPOCHS
    panel, fit = runs.train(name, config | {"epochs": epochs}, store, size=_CHECKPOINT)
    with panel:
        result = fit()
    if runs.load(result.checkpoint)[0] != epochs or result.metrics["first"] != newest + 1:
        raise Broken(f"it should go on with epoch {newest + 1}, and did so with {result.metrics['first']}")
    store.files.rm(store.storage_path("campaign", name), recursive=True)
    return (
        f"killed after {len(reported)} checkpoints;"
        f" newest whole one: epoch {newest}; went on from there to epoch {epochs - 1}"
    )


# -- what is looked at ------------------------------------------------------------------------------


def _kill_when(ready: Callable[[], bool], after: float) -> threading.Thread:
    """Kill the object server some seconds after a condition has come true; return the thread that does it."""
    (server,) = Lab(Settings.from_env().home).running(family.STORE)

    def kill() -> None:
        while not ready():
            time.sleep(0.001)
        time.sleep(after)
        os.kill(server.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    return killer


def _upload(images: datasets.Dataset, store: storage.Store, prefix: str) -> str:
    """Send each image as an object, and return the path that all of them are below."""
    path = f"{store.bucket('faults')}/{prefix}"
    objects = {f"{path}/{row:05}": image.tobytes() for row, image in enumerate(images.images)}
    with store.explained(f"upload to {path}"):
        store.files.pipe(objects)
    return path


@contextlib.contextmanager
def _noting_puts(
    store: storage.Store, committed: dict[str, str], pause: Callable[[], None]
) -> Iterator[None]:
    """Note each object that the store has confirmed, with the MD5 of what was sent; then `pause`."""
    files = store.files
    before = files._call_s3

    async def call(method: str, *args: Any, **options: Any) -> Any:
        answer = await before(method, *args, **options)
        if method == "put_object":
            body = options["Body"]
            committed[f"{options['Bucket']}/{options['Key']}"] = hashlib.md5(body).hexdigest()
            pause()
        return answer

    files._call_s3 = call
    try:
        yield
    finally:
        del files._call_s3


def _require_the_store(error: LabError, store: storage.Store) -> None:
    if store.endpoint not in str(error):
        raise Broken(f"the error does not name the store: {error}")


# -- all of it --------------------------------------------------------------------------------------

_KILLS = {"upload": kill_in_an_upload, "checkpoint": kill_in_a_checkpoint}


def main() -> None:
    options = parser(__doc__, repeat=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--campaign", type=int, metavar="N", help="N runs with any fault of course.faults")
    options.add_argument("--first", type=int, metavar="K", help="the first of them (default 0)", default=0)
    options = options.parse_args()
    if options.campaign:
        numbers = range(options.first, options.first + options.campaign)
        sys.exit(_campaign.report(numbers, options.seed) > 0)
    results = Results("faults", ours="")
    lost = 0
    with cluster.start(), storage.start():
        for moment, kill in _KILLS.items():
            rng = random.Random(options.seed)
            for number in range(1, options.repeat + 1):
                began = time.monotonic()
                try:
                    line = kill(rng)
                except Exception as error:
                    line = f"LOST: {type(error).__name__}: {error}"
                    lost += 1
                print(f"{moment} {number}: {line}", flush=True)
                results.add(moment, {"a kill and what follows": time.monotonic() - began})
    total = len(_KILLS) * options.repeat
    print(f"{total - lost} of {total} went well")
    results.finish(lost / total, json=options.json)


if __name__ == "__main__":
    main()
