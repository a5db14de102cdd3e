"""Damaged inputs to everything that reads what others may have written: a good value, or an error of the lab.

A seeded mutator damages good files, variables and messages: flipped bits, pieces that are cut off, left out,
repeated or inserted, and in JSON other types, names and depths. No reader may raise anything but its
documented errors, write to a file outside of the home, start a process or connect to a server.

    FUZZ_INPUTS=200 python -m pytest tests/test_damaged_inputs.py -n 0 -rP      # inputs for each reader
"""

import contextlib
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from labkit import datasets, runs
from labkit.errors import LabError
from labkit.models.torch import load_state, save_state
from labkit.runs.record import MARKS_NAME, RunRecord, folder_of
from labkit.settings import VARIABLES, Settings
from labkit.storage import server as object_server
from labkit.storage.client import read_keys, write_keys
from labkit.system import overview
from labkit.system.process_registry import ProcessRegistry

INPUTS = int(os.environ.get("FUZZ_INPUTS", "25"))
RANDOM = np.random.default_rng(0)
ODD = (
    *(None, True, False, -1, 0, 3, 2.5, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**63),
    *("", "x", "1", "x" * 5000, "../../outside", "/outside", "a/b", "\0", "\ud800", "<b>", "1e999", "ß"),
    *([], {}, [None], [[]], {"": None}, [1, "a"], {"a": {"b": [{}]}}),
)
PIECES = (
    b"\0",
    b"\xff",
    b"\x80\0\0\0",
    b"\x7f\xff\xff\xff",
    b"../",
    b"-1",
    b"NaN",
    b'"',
    b"\r\n",
    b",",
    b"[" * 9,
)


# -- the mutator -------------------------------------------------------------------------------------------


def damaged(good: bytes, draw: random.Random) -> bytes:
    """Some bytes of a file are others."""
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 8, 30, 300))
        match draw.randrange(8):
            case 0 | 1 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 2 if at < len(data):
                data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            case 3:
                del data[at:]
            case 4:
                del data[at : at + length]
            case 5:
                data[at:at] = data[at : at + length] * draw.choice((1, 2, 50))
            case 6:
                data[at:at] = draw.choice(PIECES)
            case 7:
                data[at : at + length] = draw.randbytes(length)
    return bytes(data)


def odd(value: Any, draw: random.Random) -> Any:
    """A value of JSON in which one part, somewhere, is of another type, missing or under another name."""
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.05:
        return draw.choice(ODD)
    changed = dict(value) if isinstance(value, dict) else list(value)
    keys = list(changed) if isinstance(changed, dict) else range(len(changed))
    (key,) = draw.choices(keys, [len(str(changed[key])) + 1 for key in keys])
    if draw.random() < 0.7:
        changed[key] = odd(changed[key], draw)
    elif draw.random() < 0.5:
        del changed[key]
    elif isinstance(changed, dict):
        changed[draw.choice(("", "x", "../../outside", "\ud800", "<b>"))] = changed.pop(key)
    else:
        changed *= 2 if len(changed) > 20 else 9
    return changed


def damaged_json(good: bytes, draw: random.Random) -> bytes:
    """Bytes of a file of JSON are others, or values in it."""
    kind = draw.random()
    if kind < 0.2:
        return damaged(good, draw)
    if kind < 0.22:
        return draw.choice((b"[", b'{"a":')) * 100_000
    value = json.loads(good)
    for _ in range(draw.randint(1, 3)):
        value = odd(value, draw)
    return json.dumps(value).encode()


# -- what a reader must not do -----------------------------------------------------------------------------

watched: dict[str, Any] = {"folder": None, "done": []}
CHANGES = {
    **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"), (0,)),
    **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
    "os.symlink": (1,),
}  # event -> which of its arguments are paths that it changes
FORBIDDEN = {"os.system", "os.posix_spawn", "os.exec", "os.fork", "os.kill", "os.killpg", "subprocess.Popen"}


def audit(event: str, given: tuple) -> None:
    """Python calls this before each such operation, also of its own library's C code."""
    folder, paths = watched["folder"], [given[place] for place in CHANGES.get(event, ())]
    if folder is None:
        return
    if event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        paths = [given[0]]
    if event in ("os.remove", "os.rmdir") and given[1] not in (-1, None):  # in a folder that is open
        paths = [f"/proc/self/fd/{given[1]}/{given[0]}"]
    paths = [os.path.realpath(os.fsdecode(path)) for path in paths if isinstance(path, (str, bytes))]
    wrong = [path for path in paths if not path.startswith((str(folder), "/dev/null"))]
    git = event == "subprocess.Popen" and given[0] == "git"  # a record says at which commit it began
    if wrong or (event in FORBIDDEN and not git) or event == "socket.connect":
        watched["done"].append((event, wrong or repr(given)[:200]))


sys.addaudithook(audit)


@contextlib.contextmanager
def confined(folder: Path) -> Iterator[None]:
    """Whatever is changed outside of `folder` meanwhile fails the test."""
    watched.update(folder=folder.resolve(), done=[])
    try:
        yield
    finally:
        watched["folder"] = None
    assert watched["done"] == []


# -- the readers -------------------------------------------------------------------------------------------
# Each is a function of an empty home: it writes good inputs and returns them, the function that reads them,
# and how they are damaged. `damage` of a file is by its suffix, unless the reader says otherwise.

Files = dict[Path, bytes]
READERS: dict[str, Callable[[Path], tuple[Files, Callable[[], Any]]]] = {}


def reader(make: Callable) -> Callable:
    READERS[make.__name__.replace("_", " ")] = make
    return make


def files(*paths: Path) -> Files:
    return {path: path.read_bytes() for path in paths}


@reader
def settings(home):
    path = home / "variables.json"
    good = ("1", "mnist", str(home), "2", "auto", "0", "text", "5", str(home), "strict", "10.0.0.1:6379")
    good += ("http://127.0.0.1:9000", "key", "secret")
    path.write_text(json.dumps(dict(zip(VARIABLES.values(), good, strict=True))))

    def read():
        try:
            given = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            given = {"LABKIT_HOME": path.read_bytes().decode("latin-1")}
        given = given if isinstance(given, dict) else {"LABKIT_WORKERS": given}
        found = Settings.from_env({str(name): str(value) for name, value in given.items()})
        assert found.num_workers > 0 and isinstance(found.home, Path)

    return files(path), read


def own(load: Callable, *given: Any, **named: Any) -> Callable:
    def read():
        found = load(*given, test=0.0, **named)
        x, y = found.load("train")
        assert len(x) == len(y) > 0 and found.fingerprint and found._repr_html_()

    return read


@reader
def images(home):
    paths = []
    for name, mode in (("cat/a.png", "RGB"), ("cat/b.jpg", "RGB"), ("dog/c.png", "P"), ("dog/d.jpeg", "L")):
        (home / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray(RANDOM.integers(0, 255, (9, 9, 3), np.uint8)).convert(mode)
        pixels.save(home / "photos" / name, exif=Image.Exif())
        paths.append(home / "photos" / name)
    return files(*paths), own(datasets.from_folder, home / "photos", size=(8, 8))


TABLE = pandas.DataFrame(
    {
        "size": RANDOM.normal(size=50),
        "rooms": RANDOM.integers(1, 9, 50),
        "colour": ["red", "blü"] * 25,
        "price": 1.5,
    }
)
NAMED = {"target": "price", "categories": ["colour"]}


@reader
def CSV(home):
    TABLE.to_csv(home / "flats.csv", index=False)
    return files(home / "flats.csv"), own(datasets.from_table, home / "flats.csv", **NAMED)


@reader
def parquet_of_a_table(home):
    TABLE.to_parquet(home / "flats.parquet")
    return files(home / "flats.parquet"), own(datasets.from_table, home / "flats.parquet", **NAMED)


def _model() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def load(folder: Path) -> None:
    model, optimizer = _model()
    assert type(load_state(folder, model, optimizer)["epoch"]) is int
    model(torch.ones(1, 3)).sum().backward()


@reader
def checkpoint(home):
    return files(save_state(home, *_model(), epoch=3)), lambda: load(home)


def _record(home: Path, number: int) -> Path:
    record = RunRecord(
        name="03-torch",
        run_id=f"id-{number}",
        engine="Ray Train",
        state=("finished", "failed", "running")[number % 3],
        started_at=f"2026-01-3{number}T12:00:00+00:00",
        workers=2,
        rows=1437,
        dataset="digits",
        config={"lr": 0.1 * number, "model": {"width": 8}},
        seed=number,
        code="def train(): pass",
        scaling={"num_workers": 2},
        storage_path=str(home / "store" / f"{number}"),
        checkpoint="c",
        seconds_total=9.5,
        seconds_to_start=2.5,
        seconds_per_epoch=[3.0, 2.5],
        seconds={"start": 2.5, "training": 5.5},
        rows_per_second=512.5,
        waiting_share=0.1,
        metrics={"loss": 0.14, "accuracy": 0.9},
        history=[{"epoch": 0, "loss": 0.3}, {"epoch": 1, "loss": 0.14}],
        checkpoints=2,
        versions={"torch": "2"},
        host={"cores": 2},
        tags=["paper"],
        note="a note",
        process={"pid": 1, "created": 0.5, "boot": "x", "machine": "y"} if number == 2 else {},
        error="ValueError: x" * (number == 1),
    )
    (home / "store" / f"{number}").mkdir(parents=True, exist_ok=True)
    return record.write(folder_of(home, record.name, record.run_id))


@reader
def run_records(home):
    paths = [_record(home, number) for number in range(3)]
    runs.note("id-0", "z", home=home)
    marks = paths[0].with_name(MARKS_NAME)
    told = [
        lambda: str(runs.table(home)),
        lambda: runs.table(home, columns=["id", "lr", "loss", "seed", "versions.torch", "started"]),
        lambda: runs.latest(home=home, state=None),
        lambda: runs.best("loss", home, mode="min", state=None),
        lambda: repr(runs.compare("id-0", "id-1", home)),
        lambda: (runs.tag("id-0", "x", home=home), runs.note("id-0", "y", home=home)),
    ]
    drawn = [  # a second each
        lambda: runs.plot(home, by="lr", state=None),
        lambda: runs.compare("id-0", "id-1", home)._repr_html_(),
        lambda: runs.report(home / "report.html", home, title="x", by="lr"),
    ]
    draw = random.Random(2)

    def read():
        every([*told, *drawn[draw.randrange(9) :][:1]])

    return files(*paths, marks), read


def every(steps: list[Callable[[], Any]]) -> None:
    """All steps; the first of the lab's own errors is raised when all were tried."""
    refused = None
    for step in steps:
        try:
            step()
        except LabError as error:
            refused = refused or error
    if refused is not None:
        raise refused


@reader
def process_registry(home):
    registry = ProcessRegistry(home)
    record = registry.record(os.getpid(), role="head: raylet", group_id="ray-1")
    registry.acquire("ray-1")
    folder, gone = registry._folder / "ray-1", {"pid": 999_999, "created": 1.5}
    good = json.loads((folder / f"{os.getpid()}.json").read_text())
    (folder / f"{os.getpid()}.json").unlink()
    (folder / "999999.json").write_text(json.dumps(good | gone))
    (folder / "owner-7.json").write_text(json.dumps({"pid": 7, "created": 1.5, "boot": record.boot}))
    (folder / f"owner-{os.getpid()}.json").unlink()

    def read():
        assert not any(one.pid == os.getpid() and one.alive for one in registry.records())
        registry.has_owner("ray-1")
        with pytest.raises(LabError, match="it runs nothing"):
            every([overview.processes, overview.ports])
        assert registry.stop("ray-1", grace=0) == []

    return files(folder / "999999.json", folder / "owner-7.json"), read


@reader
def keys_and_server_note(home):
    keys = write_keys(home / "objects" / "credentials", "LABKEY", "secret" * 6)
    note = home / "objects" / "server.json"
    note.write_text(json.dumps({"port": 40_000, "group": "store-1"}))

    def read():
        server = object_server._noted(home)
        if server is not None:
            assert not server.alive and server.endpoint
        access, secret = read_keys(keys)
        assert access and secret

    return files(keys, note), read


@reader
def list_of_checkpoints(home):
    from labkit.train import reported_checkpoints

    names = [f"checkpoint_{number}" for number in range(3)]
    results = [{"checkpoint_dir_name": name, "metrics": {"loss": 0.5}} for name in names]
    lists = {"validated": names[:1], "timed_out_validation": names[1:2], "failed_validation": []}
    path = home / "checkpoint_manager_snapshot.json"
    path.write_text(
        json.dumps(
            {
                "checkpoint_report_indices": [2, 0, 1],
                "checkpoint_results": results,
                "pending_training_results": results[2:],
                **{f"{name}_checkpoint_dir_names": value for name, value in lists.items()},
            }
        )
    )

    def read():
        for one in reported_checkpoints(str(home)):
            assert isinstance(one.metrics, dict)

    return files(path), read


@reader
def note_of_a_cluster(home):
    from labkit.cluster import nodes

    (home / "cluster.json").write_text(
        json.dumps({"group": "ray-1", "address": "127.0.0.1:1", "dashboard": "x"})
    )
    path = home / nodes._INFO
    path.write_bytes((home / "cluster.json").read_bytes())

    def read():
        found = nodes.read_info(home)
        assert all(isinstance(value, str) for value in found.values())

    return files(path), read


# -- the tests ---------------------------------------------------------------------------------------------


class Reading:
    """A reader with its good files in a home of its own."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home
        home.mkdir()
        self.good, self.read = READERS[name](home)
        self.read()  # what is good is read; and this imports what it needs

    def restore(self) -> None:
        for path, content in self.good.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def outcome(self) -> str:
        """What became of a damaged input, in short; what must not happen is raised."""
        try:
            with confined(self.home):
                self.read()
        except LabError as error:
            assert error.attempt and error.fact and error.fix
            return f"{type(error).__name__}: {' '.join(error.fact.split())[:60]}"
        except (RuntimeError, ValueError) as error:
            if "checkpoint" not in self.name or isinstance(error, UnicodeError):
                raise
            return f"{type(error).__name__}"  # of another model, as `load_state` documents
        return ""


@pytest.fixture
def reading(tmp_path, monkeypatch):
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(name: str) -> Reading:
        home = tmp_path / "home"
        monkeypatch.setenv("LABKIT_HOME", str(home))
        return Reading(name, home)

    return make


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_input_is_read_or_refused(name, reading):
    case, draw, outcomes, slowest = reading(name), random.Random(name), Counter(), 0.0
    for number in range(INPUTS):
        case.restore()
        victim = draw.choice(list(case.good))
        is_json = victim.suffix in (".json", ".saved") and case.good[victim].startswith((b"{", b"["))
        victim.write_bytes(content := (damaged_json if is_json else damaged)(case.good[victim], draw))
        begin = time.monotonic()
        try:
            outcomes[case.outcome()] += 1
        except Exception as error:
            raise AssertionError(f"input {number} in {victim.name}: {content[:300]!r}") from error
        slowest = max(slowest, time.monotonic() - begin)
    read = outcomes.pop("", 0)
    print(f"{name}: {INPUTS} inputs, {read} read, {INPUTS - read} refused in {len(outcomes)} ways", end=", ")
    print(f"the slowest took {slowest:.2f} s")


DEEP = "[" * 100_000
RECORD = {
    "name": "03-torch",
    "run_id": "id-0",
    "engine": "x",
    "state": "finished",
    "started_at": "2026-01-31T12:00:00",
}


@pytest.mark.parametrize(
    "name, file, content",
    [
        ("process registry", "999999.json", '{"pid": 7, "created": [], "boot": "x"}'),
        ("process registry", "999999.json", DEEP),
        ("process registry", "owner-7.json", '{"pid": 1e400, "created": null, "boot": 3}'),
        ("keys and server note", "credentials", b"[labkit]\naws_secret_acc\xe1ss_key = x"),
        ("keys and server note", "credentials", "[labkit]\naws_access_key_id =\naws_secret_access_key ="),
        ("keys and server note", "server.json", '{"port": 99999, "group": "store-1"}'),
        ("keys and server note", "server.json", '{"port": 80, "group": "../../outside"}'),
        ("note of a cluster", "cluster.json", '{"group": 3, "address": [], "dashboard": {}}'),
        ("run records", "run_record.json", DEEP),
        ("run records", "run_record.json", json.dumps(RECORD | {"history": [1], "tags": [[]]})),
        ("run records", "run_record.json", json.dumps(RECORD | {"seconds": {"start": "x"}, "code": 3})),
        ("run records", "run_record.json", json.dumps(RECORD | {"rows": 10**400, "process": {"pid": []}})),
        ("run records", "run_record.json", json.dumps(RECORD | {"process": {"pid": "x"}})),
        ("run records", "run_record.json", json.dumps(RECORD | {"started_at": "9999-12-31T23:59:59-12:00"})),
        (
            "run records",
            "run_record.json",
            json.dumps(RECORD | {"run_id": "\ud800", "scaling": 3, "config": "abc"}),
        ),
        ("run records", "run_record.json", json.dumps(RECORD | {"storage_path": {}, "checkpoint": []})),
        ("run records", "tags_and_note.json", '{"tags": [[1]], "note": 3}'),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_inputs_that_once_got_through(name, file, content, reading):
    """Each raised something raw, wrote outside of its folder, or was believed."""
    case = reading(name)
    case.restore()
    victim = next(path for path in case.good if path.name == file)
    victim.write_bytes(content.encode() if isinstance(content, str) else content)
    assert case.outcome() is not None
    assert not (case.home.parent / "outside").exists()


def test_no_archive_is_unpacked(root):
    """So none can have a path that leads out of its folder."""
    unpacking = re.compile(r"\b(tarfile|zipfile|unpack_archive|extractall|Untar|Unzip)\b")
    wrong = [path for path in (root / "labkit").rglob("*.py") if unpacking.search(path.read_text())]
    assert wrong == []
