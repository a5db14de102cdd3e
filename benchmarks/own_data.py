"""Data of one's own: sources ten times as large as the memory, and damaged ones.

    .venv/bin/python -m benchmarks own_data [--limit 64] [--times 10] [--damaged 300] [--only KIND …]

For each kind of source, a fresh process reads and writes a small one first, so that all libraries are loaded.
From then on the system gives it `--limit` MB more and refuses the rest (RLIMIT_DATA, which counts all memory
but that of mapped files). With that it loads a source of `--times` as many MB and writes it as Parquet files.
pyarrow reads these here: the number of rows and the sum of ``y`` must be those of the source. *Most* is what
the process had at most, without mapped files and without what it had before the source; it looks every 5 ms.

Then `--damaged` small sources of each kind, each with one to five random changes in one file, are read. A
process that ends, for want of memory or by an error that is no `DatasetError` with a fix, counts as infinite.
The last line is ``own_data: ratio=…``: the largest *most* over the limit.
"""

import io
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._paired import Found, parser
from labkit import datasets
from labkit.datasets.own import OwnData
from labkit.errors import DatasetError

_SIDE, _LENGTH = 128, 64  # pixels of an image, tokens of a row
_MB = 1_000_000
# So that no library reserves memory ahead of its use, or keeps some for each core, and so that what is freed
# goes back to the system: RLIMIT_DATA counts free pages inside of malloc's heap, too.
PLAIN = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
PLAIN["MALLOC_MMAP_THRESHOLD_"] = "131072"  # glibc's first one, which it raises otherwise
PLAIN["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
_WORDS = "the cat of a black dog and one red house was in green water by its old tree".split()  # noqa: SIM905

Sum = tuple[int, float]  # rows of a source, and the sum of their y


def _frame(rows: int, seed: int) -> Any:
    """A table with eleven columns, and one to predict."""
    import pandas

    numbers = np.random.default_rng(seed)
    columns = {f"c{number}": numbers.normal(size=rows) for number in range(10)}
    columns["colour"] = numbers.choice(["red", "blue", "green"], rows)
    return pandas.DataFrame(columns).assign(price=numbers.normal(size=rows))


def make_csv(path: Path, size: int) -> Sum:
    rows, total = 0, 0.0
    with open(path / "all.csv", "w") as file:
        while file.tell() < size:
            frame = _frame(1000, rows)
            frame.to_csv(file, index=False, header=not rows)
            rows, total = rows + len(frame), total + frame["price"].sum()
    return rows, total


def make_parquet(path: Path, size: int) -> Sum:
    """As pandas writes it, in row groups of a million rows."""
    frame = _frame(size // 90, 0)
    frame.to_parquet(path / "all.parquet")
    return len(frame), frame["price"].sum()


def make_text(path: Path, size: int) -> Sum:
    numbers = np.random.default_rng(0)
    with open(path / "all.txt", "w") as file:
        while file.tell() < size:
            file.write(" ".join(numbers.choice(_WORDS, 2000)) + "\n")
    text = np.memmap(path / "all.txt", np.uint8, "r")
    rows = (len(text) - 1) // _LENGTH
    return rows, float(text[1 : rows * _LENGTH + 1].sum(dtype=np.int64))


def _reviews(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts of a hundred words, some 400 bytes, with 1 to 5 stars."""
    numbers = np.random.default_rng(seed)
    return [(" ".join(numbers.choice(_WORDS, 100)), int(numbers.integers(1, 6))) for _ in range(count)]


def make_reviews(path: Path, size: int) -> Sum:
    rows, total = 0, 0
    with open(path / "all.csv", "w") as file:
        file.write("text,stars\n")
        while file.tell() < size:
            some = _reviews(100, rows)
            file.writelines(f"{text},{stars}\n" for text, stars in some)
            rows, total = rows + len(some), total + sum(stars - 1 for _, stars in some)
    return rows, total


def _image(number: int) -> bytes:
    """A PNG of noise, which takes as much in the file as in memory."""
    from PIL import Image

    stream = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, "PNG", compress_level=0)
    return stream.getvalue()


def _images(size: int) -> int:
    return max(size // (3 * _SIDE**2), 12)


def make_folder(path: Path, size: int) -> Sum:
    count = _images(size)
    for number in range(count):
        file = path / "all" / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_image(number))
    return count, count // 2


def make_saved_table(path: Path, size: int) -> Sum:
    import datasets as hf

    frame = _frame(size // 90, 0)
    hf.Dataset.from_pandas(frame).save_to_disk(path / "all")
    return len(frame), frame["price"].sum()


def make_saved_images(path: Path, size: int) -> Sum:
    import datasets as hf

    count = _images(size)
    columns = {"image": [{"bytes": _image(n), "path": None} for n in range(count)]}
    columns["kind"] = [number % 2 for number in range(count)]
    features = hf.Features({"image": hf.Image(), "kind": hf.ClassLabel(names=["cat", "dog"])})
    hf.Dataset.from_dict(columns, features=features).save_to_disk(path / "all")
    return count, count // 2


_table = partial(datasets.from_table, target="price")
_text = partial(datasets.from_text, length=_LENGTH)
# kind of source → (what writes one into a folder, its path in there, what loads it)
KINDS: dict[str, tuple[Callable[[Path, int], Sum], str, Callable[..., OwnData]]] = {
    "from_folder": (make_folder, "all", datasets.from_folder),
    "from_table, CSV": (make_csv, "all.csv", _table),
    "from_table, Parquet": (make_parquet, "all.parquet", _table),
    "from_text, language": (make_text, "all.txt", _text),
    "from_text, classes": (make_reviews, "all.csv", partial(_text, target="stars")),
    "from_huggingface, table": (make_saved_table, "all", partial(datasets.from_huggingface, target="price")),
    "from_huggingface, images": (make_saved_images, "all", partial(datasets.from_huggingface, target="kind")),
}


def _status(name: str) -> int:
    """A figure of this process, in bytes."""
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def stream(answer: Connection, kind: str, folder: Path, limit: int, everything: bool = False) -> None:
    """Load a source and write it with at most `limit` bytes more; `everything`: keep all rows in memory."""
    _, path, load = KINDS[kind]
    load(folder / "small" / path).write(str(folder / "small-rows"))
    before, most = _status("RssAnon"), 0

    def look() -> None:
        nonlocal most
        while True:
            most = max(most, _status("RssAnon"))
            time.sleep(0.005)

    threading.Thread(target=look, daemon=True).start()
    time.sleep(0.1)
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + limit, resource.RLIM_INFINITY))
    begin, busy = time.perf_counter(), time.process_time()
    own = load(folder / "large" / path)
    loaded = time.perf_counter()
    if everything:
        own.load("train")
    rows = own.write(str(folder / "rows"))
    ended = time.perf_counter()
    busy = time.process_time() - busy
    answer.send((sum(rows.values()), most - before, loaded - begin, ended - loaded, busy))


def damage(answer: Connection, kind: str, folder: Path, count: int) -> None:
    """Read `count` damaged sources."""
    _, path, load = KINDS[kind]
    files = [file for file in sorted((folder / "small").rglob("*")) if file.is_file()]
    load(folder / "small" / path).load("train")
    read, before = 0, _status("VmRSS")
    for seed in range(count):
        file = files[seed % len(files)]
        good = file.read_bytes()
        file.write_bytes(mutated(good, seed))
        try:
            for _ in load(folder / "small" / path, test=0).batches("train"):
                pass
            read += 1
        except DatasetError as error:
            assert "\n  fix: " in str(error), error
        finally:
            file.write_bytes(good)
    answer.send((read, count - read, _status("VmHWM") - before))


def mutated(good: bytes, seed: int) -> bytes:
    """A file with one to five changes: a byte is another, up to 39 are missing, or up to 7 are new."""
    numbers, data = np.random.default_rng(seed), bytearray(good)
    for _ in range(numbers.integers(1, 6)):
        at = int(numbers.integers(len(data)))
        what = numbers.integers(3)
        if what == 0:
            data[at] = numbers.integers(256)
        elif what == 1:
            del data[at : at + int(numbers.integers(1, 40))]
        else:
            data[at:at] = numbers.bytes(int(numbers.integers(1, 8)))
    return bytes(data)


def alone(work: Callable[..., None], *given: Any) -> Any:
    """What `work` sends from a fresh process; a RuntimeError if that process ends without."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(there, *given))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{given[0]}: its process ended with {process.exitcode}") from None
    finally:
        process.join()


def written(folder: Path) -> Sum:
    """The rows and the sum of y in Parquet files, read in batches."""
    import pyarrow.dataset

    rows, total = 0, 0.0
    for split in ("train", "test"):
        for batch in pyarrow.dataset.dataset(folder / split).to_batches(columns=["y"]):
            values = batch["y"]
            rows += len(values)
            values = values.storage.flatten() if isinstance(values, pyarrow.ExtensionArray) else values
            total += float(values.to_numpy().sum(dtype=np.float64))
    return rows, total


def measure(kind: str, *, limit: int, times: float, damaged: int) -> dict[str, float]:
    """Figures of one kind of source: seconds, and bytes of memory.

    Raises:
        AssertionError: other rows were written than the source has.
        RuntimeError: a process ended, as one does that needs more than `limit`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, size in (("small", 20_000), ("large", int(times * limit))):
            (folder / part).mkdir()
            rows, total = KINDS[kind][0](folder / part, size)
        source = sum(file.stat().st_size for file in (folder / "large").rglob("*.*") if file.is_file())
        count, most, loading, writing, busy = alone(stream, kind, folder, limit)
        found, there = written(folder / "rows")
        assert found == count == rows, f"{kind}: {found:,} rows were written, the source has {rows:,}"
        assert abs(there - total) < 1e-6 * rows + 0.01, f"{kind}: y sums up to {there}, not {total}"
        read, refused, damaged_most = alone(damage, kind, folder, damaged)
    return {
        "source": source, "rows": rows, "most": most, "load s": loading, "write s": writing, "CPU s": busy,
        "read": read, "refused": refused, "most of the damaged": damaged_most,
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__, repeat=1)
    options.add_argument("--limit", type=int, default=64, help="MB of memory (default 64)")
    options.add_argument("--times", type=float, default=10, help="of the limit, a source (default 10)")
    options.add_argument("--damaged", type=int, default=300, help="sources of each kind (default 300)")
    options.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    options = options.parse_args()
    os.environ.update(PLAIN)
    found, limit = Found("own_data", ours="limit"), options.limit * _MB
    for _ in range(options.repeat):
        for kind in options.only:
            try:
                got = measure(kind, limit=limit, times=options.times, damaged=options.damaged)
            except RuntimeError as error:
                print(error, flush=True)
                found.seconds.setdefault("most", {}).setdefault(kind, []).append(float("inf"))
                continue
            print(
                f"{kind}: {got['source'] / _MB:,.0f} MB, {got['rows']:,} rows, loaded in {got['load s']:.0f}"
                f" s, written in {got['write s']:.0f}, {got['CPU s']:.0f} s of CPU, at most"
                f" {got['most'] / _MB:.0f} MB; damaged: {got['read']} read, {got['refused']} refused,"
                f" {got['most of the damaged'] / _MB:.0f} MB",
                flush=True,
            )
            found.beside.setdefault("sources", []).append({"kind": kind, **got})
            found.seconds.setdefault("most", {}).setdefault(kind, []).append(got["most"] / _MB)
    most = max(max(figures) for figures in found.seconds["most"].values())
    found.finish(most / options.limit, json=options.json, unit="MB")


if __name__ == "__main__":
    main()
