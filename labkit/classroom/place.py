"""The place that a teacher names for a class: a shared folder, or a bucket of an object store.

Everybody in the class may write to it, so nothing in it is trusted: links are not followed, only regular
files are opened, and only the first 64 kB of them are read.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.files import atomic_path
from labkit.settings import Settings

LIMIT = 64 << 10  # bytes of a learner's file; the lab's own have about 5 kB with all lessons done
_MOST = 500  # files that are read

# name, content or why there is none, when it was written (seconds since 1970)
Found = tuple[str, bytes | str, float]


class Folder:
    """A folder that all machines of the class have mounted."""

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.expanduser(path)).absolute()

    def write(self, name: str, content: bytes) -> None:
        os.scandir(self.path).close()  # atomic_path would create the folder of a share that is gone
        with atomic_path(self.path / name) as partial, partial.open("xb") as file:
            os.fchmod(file.fileno(), 0o644)  # the teacher is another user
            file.write(content)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def read(self) -> Iterator[Found]:
        with os.scandir(self.path) as entries:
            names = sorted(entry.name for entry in entries if _is_learners(entry.name))
        for name in names[:_MOST]:
            try:
                yield self._read(name)
            except OSError as error:
                link = "it is a link, which is not followed"
                yield name, link if error.errno == errno.ELOOP else f"{error.strerror}", 0.0
        if len(names) > _MOST:
            yield "…", f"there are {len(names) - _MOST} more files, which are not read", 0.0

    def _read(self, name: str) -> Found:
        # Without O_NONBLOCK, to open a FIFO waits until something writes to it.
        handle = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return name, "it is not a regular file", 0.0
            return name, os.read(handle, LIMIT + 1), status.st_mtime
        finally:
            os.close(handle)


class Bucket:
    """A bucket, or a folder in one: ``https://host:9000/bucket/class``."""

    def __init__(self, endpoint: str, path: str, keys: Path) -> None:
        from labkit.storage.client import ObjectFiles  # a second of CPU: only who has a bucket pays for it

        self.path = path
        self.files = ObjectFiles(endpoint=endpoint, keys=str(keys), hasty=True)

    def write(self, name: str, content: bytes) -> None:
        self.files.pipe_file(f"{self.path}/{name}", content)

    def delete(self, name: str) -> None:
        self.files.rm_file(f"{self.path}/{name}")

    def read(self) -> Iterator[Found]:
        try:
            listed = self.files.ls(self.path, detail=True)
        except FileNotFoundError:  # nothing has been written there yet, or there is no such bucket
            self.files.ls(self.path.partition("/")[0])
            return
        objects = {one["name"].rpartition("/")[2]: one for one in listed if one["type"] == "file"}
        names = [name for name in sorted(objects) if _is_learners(name)][:_MOST]
        paths = [f"{self.path}/{name}" for name in names]
        bodies = self.files.cat_ranges(paths, 0, LIMIT + 1, on_error="return") if names else []
        for name, body in zip(names, bodies, strict=True):
            content = f"{type(body).__name__}: {body}" if isinstance(body, Exception) else body
            yield name, content, objects[name]["LastModified"].timestamp()


def keys_file() -> Path:
    """Where `labkit.classroom.join` keeps the keys of a class's bucket, for this home's kernels."""
    return Settings.from_env().home / "class-keys"


@cache
def open_place(place: str, keys: Path) -> Folder | Bucket:
    """Return the place with this name: the path of a folder, or the URL of a bucket.

    Raises:
        LabError: it is neither.
    """
    if "://" not in place:
        return Folder(place)
    if match := re.fullmatch(r"(https?://[^\s/?#@]+)/([^\s?#]*[^\s?#/])/?", place):
        return Bucket(match[1], match[2], keys)
    fact = "it is neither the path of a folder nor the address of a bucket (which has no keys in it)"
    fix = "name it like /mnt/class or https://host:9000/bucket/class"
    raise LabError("use the place of a class", fact, fix)


@contextlib.contextmanager
def explained(attempt: str, place: Any) -> Iterator[None]:
    """Raise what fails in this block as a LabError that names the place."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        if isinstance(place, Bucket):
            from labkit.storage import explain

            fact, fix = explain.explain(error, place.files.endpoint_url, None)
        else:
            fact = f"{place.path}: {getattr(error, 'strerror', None) or error}"
            fix = "ask for the right folder"
        raise LabError(attempt, fact, fix) from error


def _is_learners(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")
