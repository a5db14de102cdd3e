"""The state of a sweep in one file, so that a sweep whose process was killed can be restored.

Tune keeps the state in several files (trials, searcher, callbacks). It writes them to a local folder, and a
thread copies that folder to the storage while the loop may already write the next state. So a kill can leave
files there that are cut off or of different moments, on an object store too: of six sweeps that were killed
at random, four could not be restored. `save` puts all files of one moment into one file.

The names of Tune's files have the local time at which their session began. After the end of summer time, or
after the clock was set back, a newer session can have the older name, and Tune reads the last name. So `save`
goes by the time at which a file was written, and `restore` writes under the name that Tune will read.
"""

import json
from pathlib import Path

import pyarrow.fs

from labkit.files import atomic_write
from labkit.tune.trials import STATE_FILES

# Not .json or .pkl: when Tune restores a sweep, it copies those to its local folder, and later back again.
NAME = "last_state.saved"


def save(filesystem: pyarrow.fs.FileSystem, folder: str, staging: Path) -> None:
    """Save the newest state in Tune's local folder `staging` to the sweep's `folder`.

    Raises:
        OSError: the folder cannot be written to.
    """
    *earlier, newest = sorted(staging.glob(f"{STATE_FILES}*.json"), key=lambda path: path.stat().st_mtime_ns)
    files = {path.name: "" for path in earlier}  # sessions before this one, whose state is obsolete
    for path in staging.glob(f"[!.]*-{_session(newest.name)}.*"):
        files[path.name] = path.read_bytes().decode("latin-1")  # any bytes
    _write(filesystem, f"{folder}/{NAME}", json.dumps(files).encode())


def restore(filesystem: pyarrow.fs.FileSystem, folder: str) -> None:
    """Write the saved state over Tune's own files, unless those are of a later run without a panel."""
    try:
        with filesystem.open_input_stream(f"{folder}/{NAME}") as file:
            files: dict[str, str] = json.loads(file.read())
        (newest,) = (name for name, text in files.items() if text and name.startswith(STATE_FILES))
    except (FileNotFoundError, ValueError, AttributeError):
        return  # there is none, or it is damaged: Tune's own files are what there is
    there = states(filesystem, folder)
    if any(name > newest for name in there if name not in files):
        return
    read_by_tune = _session(max([*there, newest]))
    for name, text in files.items():
        if text and Path(name).name == name:
            name = name.replace(_session(newest), read_by_tune)
            _write(filesystem, f"{folder}/{name}", text.encode("latin-1"))


def is_valid(filesystem: pyarrow.fs.FileSystem, folder: str) -> bool:
    """Whether Tune can read the newest list of trials in `folder`, and there is one in it."""
    try:
        with filesystem.open_input_stream(f"{folder}/{max(states(filesystem, folder))}") as file:
            return bool(json.loads(file.read()).get("trial_data", True))
    except (OSError, ValueError, AttributeError):
        return False


def states(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """The names of Tune's state files in a sweep's folder."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    return [info.base_name for info in found if info.base_name.startswith(STATE_FILES)]


def _session(name: str) -> str:
    """``2026-01-01_10-00-00`` of ``experiment_state-2026-01-01_10-00-00.json``."""
    return name.removeprefix(STATE_FILES).removesuffix(".json")


def _write(filesystem: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file atomically. An object store does so by itself."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        atomic_write(path, content)
        return
    with filesystem.open_output_stream(path) as file:
        file.write(content)
