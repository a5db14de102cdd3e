"""The place that a teacher names for a class: a shared folder, or a bucket of an object store.

All learners of the class may write to it, so nothing in it is trusted: links are not followed, and only the
first 64 kB of a file are read.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.errors import BadInput, LabError, NotReachable
from labkit.files import atomic_path
from labkit.settings import Settings

LIMIT = 64 << 10  # bytes of a learner's file; one with all lessons done has about 5 kB
NAME = re.compile(r"[0-9a-f]{16}\.json")  # of a learner's file; all others are ignored
_MOST = 500  # files that are read

# name, content or the reason why there is none, when it was written (seconds since 1970)
File = tuple[str, bytes | str, float]


class Folder:
    """A folder that all machines of the class have mounted."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser().absolute()

    def write(self, name: str, content: bytes) -> None:
        os.scandir(self.path).close()  # atomic_path would create the folder of a share that is gone
        with atomic_path(self.path / name) as partial, partial.open("xb") as file:
            os.fchmod(file.fileno(), 0o644)  # the teacher is another user
            file.write(content)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def read(self) -> Iterator[File]:
        """Read at most 500 files."""
        for name in sorted(filter(NAME.fullmatch, os.listdir(self.path)))[:_MOST]:
            try:
                # Without O_NONBLOCK, opening a FIFO waits until something writes to it.
                handle = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(handle, "rb", buffering=0) as file:
                    yield name, file.read(LIMIT + 1) or b"", os.fstat(handle).st_mtime
            except FileNotFoundError:
                pass  # its learner has left the class
            except OSError as error:
                yield name, str(error.strerror), 0.0


class Bucket:
    """A bucket, or a folder in one: ``https://host:9000/bucket/class``."""

    def __init__(self, endpoint: str, path: str) -> None:
        from labkit.storage.client import ObjectFiles  # a second of CPU, only for those who have a bucket

        self.path = path
        self.files = ObjectFiles(
            endpoint=endpoint,
            keys=str(keys_file()),
            hasty=True,
        )

    def write(self, name: str, content: bytes) -> None:
        self.files.pipe_file(f"{self.path}/{name}", content)

    def delete(self, name: str) -> None:
        self.files.rm_file(f"{self.path}/{name}")

    def read(self) -> Iterator[File]:
        """Read at most 500 objects."""
        try:
            listed = self.files.ls(self.path, detail=True, refresh=True)
        except FileNotFoundError:
            return  # the folder has no file yet
        written = {}
        for entry in listed:
            name = entry["name"].rpartition("/")[2]
            written[name] = entry.get("LastModified")
        names = sorted(filter(NAME.fullmatch, written))[:_MOST]
        if not names:
            return
        paths = [f"{self.path}/{name}" for name in names]
        bodies = self.files.cat_ranges(paths, 0, LIMIT + 1, on_error="return")
        for name, body in zip(names, bodies, strict=True):
            if isinstance(body, FileNotFoundError):
                continue  # its learner has left the class
            if isinstance(body, Exception):
                body = f"{type(body).__name__}: {body}"
            modified = written[name]
            yield name, body, modified.timestamp() if modified else time.time()


def keys_file() -> Path:
    """Return the file in which `classroom.join` keeps the keys of a class's bucket."""
    return Settings.from_env().home / "class-keys"


def open_place(place: str) -> Folder | Bucket:
    """Return the place with this name: the path of a folder, or the URL of a bucket.

    Raises:
        BadInput: it is neither.
    """
    if "://" not in place:
        return Folder(place)
    url = re.fullmatch(r"(https?://[^\s/?#@]+)/([^\s?#]*[^\s?#/])/?", place)
    if url:
        return Bucket(endpoint=url[1], path=url[2])
    raise BadInput(
        "use the place of a class",
        "it is neither the path of a folder nor the address of a bucket (which has no keys in it)",
        "name it like /mnt/class or https://host:9000/bucket/class",
    )


@contextlib.contextmanager
def explained(attempt: str, place: Folder | Bucket) -> Iterator[None]:
    """Raise what fails in this block as `NotReachable`, which names the place."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        fix = "ask for the right folder, and for the right to write to it"
        if isinstance(place, Bucket):
            fix = (
                "does the store run, does the bucket exist, and are LABKIT_S3_ACCESS_KEY and "
                "LABKIT_S3_SECRET_KEY right?"
            )
        raise NotReachable(attempt, f"{place.path}: {reason}"[:300], fix) from error
