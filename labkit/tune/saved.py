"""The state of a sweep in one file, so that a sweep whose process was killed can be restored.

Tune keeps the state in several files (trials, searcher, callbacks). It writes them to a local folder, and a
thread copies that folder to the storage while the loop may already write the next state. So a kill can leave
files there that are cut off or of different moments, on an object store too: of six sweeps that were killed
at random, four could not be restored. `save` puts all files of one moment into one file.
"""

import json
import re
from pathlib import Path

import pyarrow.fs

from labkit.files import atomic_write, json_object
from labkit.tune.trials import STATE_FILES

# Not .json or .pkl: when Tune restores a sweep, it copies those to its local folder, and later back again.
NAME = "last_state.saved"


def save(filesystem: pyarrow.fs.FileSystem, folder: str, staging: Path) -> None:
    """Save the newest state in Tune's local folder `staging` to the sweep's `folder`.

    Raises:
        OSError: the folder cannot be written to.
    """
    newest = max(staging.glob(f"{STATE_FILES}*.json"), key=lambda path: path.name)
    session = newest.stem.removeprefix(STATE_FILES)
    paths = staging.glob(f"[!.]*-{session}.*")
    files = {path.name: path.read_bytes().decode("latin-1") for path in paths}  # any bytes
    _write(filesystem, f"{folder}/{NAME}", json.dumps(files).encode())


def restore(filesystem: pyarrow.fs.FileSystem, folder: str) -> None:
    """Write the saved state over Tune's own files, unless those are of a later run without a panel."""
    try:
        with filesystem.open_input_stream(f"{folder}/{NAME}") as file:
            content = file.read()
        files: dict[str, str] = {
            name: text for name, text in json_object(content).items() if _is_state(name, text)
        }
    except (
        FileNotFoundError,
        ValueError,
    ):  # there is none, or it is damaged: Tune's own files are what there is
        return
    saved = max((name for name in files if name.startswith(STATE_FILES)), default="")
    if saved >= max(states(filesystem, folder), default=""):
        for name, content in files.items():
            _write(filesystem, f"{folder}/{name}", content.encode("latin-1"))


def is_valid(filesystem: pyarrow.fs.FileSystem, folder: str) -> bool:
    """Whether Tune can read the newest list of trials in `folder`, and there is one in it."""
    try:
        with filesystem.open_input_stream(f"{folder}/{max(states(filesystem, folder))}") as file:
            return bool(json.loads(file.read()).get("trial_data", True))
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def states(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """The names of Tune's state files in a sweep's folder. They sort by time."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    return [info.base_name for info in found if info.base_name.startswith(STATE_FILES)]


def _is_state(name: str, text: object) -> bool:
    """Whether this can be one of Tune's files: a name without a way out of the folder, and bytes as text."""
    return (
        bool(re.fullmatch(r"[\w-][\w.-]{0,199}", name))
        and isinstance(text, str)
        and max(text, default="") < "Ā"
    )


def _write(filesystem: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file atomically. An object store does so by itself."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        atomic_write(path, content)
        return
    with filesystem.open_output_stream(path) as file:
        file.write(content)
