"""The state of a sweep in one file, so that a sweep whose process was killed can be restored.

Tune keeps the state in several files (trials, searcher, callbacks), and a thread copies them to the storage
while the loop may already write the next state. So a kill can leave files there that are cut off or of
different moments, on an object store too: of six sweeps that were killed at random, four could not be
restored. `save` puts all files of one moment into one file.
"""

import json
from pathlib import Path

import pyarrow.fs

from labkit.files import atomic_write

STATE_FILES = "experiment_state-"  # plus the session's time and ".json": Tune's list of trials
# Not .json or .pkl: when Tune restores a sweep, it copies those to its local folder, and later back again.
NAME = "last_state.saved"


def save(filesystem: pyarrow.fs.FileSystem, folder: str, staging: Path) -> None:
    """Save the newest state in Tune's local folder `staging` to the sweep's `folder`.

    Raises:
        OSError: the folder cannot be written to.
    """
    newest = max(path.stem for path in staging.glob(f"{STATE_FILES}*.json"))
    found = staging.glob(f"[!.]*-{newest.removeprefix(STATE_FILES)}.*")
    files = {path.name: path.read_bytes().decode("latin-1") for path in found}  # JSON has no bytes
    _write(filesystem, f"{folder}/{NAME}", json.dumps(files).encode())


def restore(filesystem: pyarrow.fs.FileSystem, folder: str) -> None:
    """Write the saved state over Tune's own files, unless those are of a later run without a panel."""
    try:
        with filesystem.open_input_stream(f"{folder}/{NAME}") as file:
            files: dict[str, str] = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return  # there is none, or it is damaged: Tune's own files are what there is
    newest = max(name for name in files if name.startswith(STATE_FILES))
    if max(states(filesystem, folder), default="") <= newest:
        for name, text in files.items():
            _write(filesystem, f"{folder}/{Path(name).name}", text.encode("latin-1"))


def states(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """The names of Tune's state files in a sweep's folder."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    return [info.base_name for info in found if info.base_name.startswith(STATE_FILES)]


def _write(filesystem: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file atomically. An object store does so by itself."""
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        atomic_write(path, content)
        return
    with filesystem.open_output_stream(path) as file:
        file.write(content)
