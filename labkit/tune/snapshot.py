"""The state of a sweep, kept as a whole: what a sweep goes on from whose process was killed.

Tune keeps that state in several files (the trials, the searcher, the callbacks), and copies them one by one
over the older ones. A kill may leave one of them cut off, or a new one beside an old one: a searcher that
believes in trials that nobody knows. So the panel keeps all files of one moment in one archive, which takes
the place of the older one when it is whole.
"""

import io
import json
import os
import pickletools
import zipfile
from pathlib import Path

import pyarrow.fs

NAME = "last_whole_state.zip"
STATE_FILES = "experiment_state-"  # and the session's time and .json: the trials


class Snapshots:
    """Keeps the newest state of one sweep.

    Args:
        filesystem: of the sweep's results.
        folder: of the sweep, there.
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, folder: str) -> None:
        self._filesystem, self._path = filesystem, f"{folder}/{NAME}"
        self._state: str | None = None
        self._seen: tuple[int, int] | None = None

    def keep(self, staging: str) -> bool:
        """Keep what Tune has written to its local folder `staging`, if that is new; whether it was.

        To be called in the thread that writes there, between two writings. Most calls find nothing new, and
        cost one look at a file.

        Raises:
            OSError: the results' folder takes nothing.
        """
        if self._state is None:
            states = sorted(Path(staging).glob(f"{STATE_FILES}*.json"))
            if not states:
                return False
            self._state = str(states[-1])
        look = os.stat(self._state)
        if (look.st_mtime_ns, look.st_size) == self._seen:
            return False
        _put(self._filesystem, self._path, _archive(Path(self._state)))
        self._seen = (look.st_mtime_ns, look.st_size)
        return True

    def forget(self) -> None:
        """Remove it: the sweep came to its end, and Tune has written all."""
        if self._filesystem.get_file_info(self._path).type == pyarrow.fs.FileType.File:
            self._filesystem.delete_file(self._path)


def bring_back(filesystem: pyarrow.fs.FileSystem, folder: str) -> bool:
    """Put the kept state of a sweep that was killed back in its place; whether there was one to put.

    Files of Tune's are left as they are where they are of a later session, and whole: it had no panel.
    """
    try:
        with filesystem.open_input_stream(f"{folder}/{NAME}") as file:
            kept = _contents(file.read())
    except FileNotFoundError:
        return False
    (mine,) = (name for name in kept if name.startswith(STATE_FILES))
    later = [name for name in _states(filesystem, folder) if name > mine]
    if (
        later
        and is_whole(filesystem, folder)
        and len(_of_session(filesystem, folder, later[-1])) >= len(kept)
    ):
        return False
    for state in later:  # Tune would take the newest, and that one is damaged
        for name in _of_session(filesystem, folder, state):
            filesystem.delete_file(f"{folder}/{name}")
    for name, content in kept.items():
        _put(filesystem, f"{folder}/{name}", content)
    return True


def is_whole(filesystem: pyarrow.fs.FileSystem, folder: str) -> bool:
    """Whether Tune can read the newest state in `folder`: the trials and the searcher."""
    states = _states(filesystem, folder)
    if not states:
        return False
    names = _of_session(filesystem, folder, states[-1])
    try:
        for name in names:
            with filesystem.open_input_stream(f"{folder}/{name}") as file:
                content = file.read()
            if name == states[-1]:
                json.loads(content)
            else:
                for _ in pickletools.genops(content):  # reads it through, and runs nothing of it
                    pass
    except (OSError, ValueError):
        return False
    return True


def _states(filesystem: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """The names of Tune's state files, the oldest first."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    return sorted(info.base_name for info in found if info.base_name.startswith(STATE_FILES))


def _of_session(filesystem: pyarrow.fs.FileSystem, folder: str, state: str) -> list[str]:
    """The names of all files of the session that wrote the file `state`."""
    found = filesystem.get_file_info(pyarrow.fs.FileSelector(folder))
    return [info.base_name for info in found if _belongs(info.base_name, state)]


def _belongs(name: str, state: str) -> bool:
    session = Path(state).stem.removeprefix(STATE_FILES)
    ours = name.endswith((f"-{session}.json", f"-{session}.pkl"))
    return ours and not name.startswith(".")  # Tune's own, while it writes them


def _archive(state: Path) -> bytes:
    """The files of the session that wrote `state`: all of one moment."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in state.parent.iterdir():
            if _belongs(path.name, state.name):
                archive.write(path, path.name)
    return packed.getvalue()


def _contents(packed: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _put(filesystem: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    """Write a file so that half of it is never found: only on a plain disk does that need two steps."""
    plain = filesystem.type_name == "local"
    with filesystem.open_output_stream(f"{path}.part" if plain else path) as file:
        file.write(content)
    if plain:
        filesystem.move(f"{path}.part", path)
