"""Fetch a file whose checksum is known, from the first address that gives it.

    >>> labels = RemoteFile(name="labels.gz", sha256="f7ae60f9…", size=4542)
    >>> path = fetch(labels, into=home / "datasets" / "mnist", addresses=["https://example.org/mnist"])

A file stands in the folder whole and with the right checksum, or not at all; one that is there
is not fetched again, and needs neither a network nor the right to write. Processes that want the same
file at the same time wait for the one that came first.
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import DatasetError

Progress = Callable[[int, int], None]  # called with the bytes that came and the bytes there are

_SILENCE = 20.0  # seconds without a byte until an address is given up
_LONGEST_WAIT = 1800.0  # seconds that one process waits for another's download
_PIECE = 1 << 16  # bytes between two looks at the progress


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file to fetch.

    Attributes:
        name: its name, at every address and in the folder.
        sha256: of its bytes, as hex digits.
        size: in bytes; a server that sends more is cut off.
    """

    name: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            fact = f"{self.name!r} is no plain name"
            raise DatasetError("use this file name", fact, "give it without folders")


def fetch(
    file: RemoteFile, *, into: Path, addresses: Sequence[str], progress: Progress = lambda done, total: None
) -> Path:
    """The path of `file` in the folder `into`, where it is put if it is not there yet.

    Args:
        addresses: where to look, in order: URLs (http, https) or folders that hold the file.
        progress: called now and then with the bytes that came and the bytes there are.

    Raises:
        DatasetError: no address gave the file, or the folder cannot be written.
    """
    import filelock

    path, attempt = into / file.name, f"fetch {file.name} of {into.name}"
    if _is_whole(path, file):
        return path
    try:
        into.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(into / ".lock", timeout=_LONGEST_WAIT):
            if not _is_whole(path, file):  # or another process fetched it while this one waited
                _fetch_from_any(file, path, addresses, progress)
    except filelock.Timeout:
        fact = f"another process has been fetching into {into} for {_LONGEST_WAIT / 60:.0f} minutes"
        raise DatasetError(attempt, fact, "see what it does, or end it") from None
    except OSError as error:
        fact = f"the folder {into} cannot be written: {error.strerror or error}"
        fix = "make room or give the right to write there, or export LABKIT_HOME=… with another folder"
        raise DatasetError(attempt, fact, fix) from None
    return path


def _fetch_from_any(file: RemoteFile, path: Path, addresses: Sequence[str], progress: Progress) -> None:
    tried = []
    for address in addresses:
        with _emptied(path.parent / ".partial") as partial:
            reason = _fetch_from(address, file, partial / file.name, progress)
            if reason is None:
                os.replace(partial / file.name, path)
                return
        tried.append(f"{_public(address)}: {reason}")
    raise DatasetError(
        f"fetch {file.name} of {path.parent.name}",
        "no address gave it:\n    " + "\n    ".join(tried or ["there is no address to try"]),
        "look at the network and the proxy;\n"
        "    or name a server or a folder that has it: export LABKIT_MIRROR=…\n"
        f"    or put the file (SHA-256 {file.sha256}) there yourself: {path}\n"
        "    or work offline with LABKIT_DATASET=digits or LABKIT_DATASET=rendered",
    )


def _fetch_from(address: str, file: RemoteFile, path: Path, progress: Progress) -> str | None:
    """Put the file to `path`; what went wrong, or None."""
    counter = _Counter(file, path, progress)
    try:
        if address.startswith(("http://", "https://")):
            _download(f"{address.rstrip('/')}/{file.name}", path, counter)
        else:
            _copy(Path(address).expanduser() / file.name, path, counter)
    except _Refused as refused:
        return str(refused)
    if (found := _sha256(path)) == file.sha256:
        return None
    expected = f"{file.size:,} bytes with SHA-256 {file.sha256}"
    return f"{counter.bytes:,} bytes came with SHA-256 {found}, and {expected} were expected"


def _download(url: str, path: Path, counter: "_Counter") -> None:
    import pooch
    import requests

    # Compressed files are wanted as they lie there: a server must not unpack them on the way.
    downloader = pooch.HTTPDownloader(
        progressbar=counter, timeout=_SILENCE, chunk_size=_PIECE, headers={"Accept-Encoding": "identity"}
    )
    try:
        downloader(url, str(path), None)
    except requests.HTTPError as error:
        raise _Refused(f"it answered {error.response.status_code} {error.response.reason}") from None
    except (requests.RequestException, ValueError) as error:
        if counter.bytes:
            fact = f"the connection broke after {counter.bytes:,} of {counter.total:,} bytes"
        elif isinstance(error, requests.Timeout):
            fact = f"no answer within {_SILENCE:.0f} s"
        else:
            fact = f"no connection ({type(error).__name__})"
        raise _Refused(fact) from None


def _copy(source: Path, path: Path, counter: "_Counter") -> None:
    try:
        original = source.open("rb")
    except OSError as error:  # one of `path` is another matter
        raise _Refused(error.strerror or str(error)) from None
    with original, path.open("wb", buffering=0) as copy:
        while piece := original.read(_PIECE):
            copy.write(piece)
            counter.update(len(piece))


class _Refused(Exception):
    """Why an address did not give the file."""


class _Counter:
    """Follows a download in the form that pooch wants a progress bar, and ends one that is too long."""

    def __init__(self, file: RemoteFile, path: Path, progress: Progress) -> None:
        self.total = file.size  # pooch sets this to what the server announces, or to 0
        self._size, self._path, self._progress = file.size, path, progress

    @property
    def bytes(self) -> int:
        """How many lie on the disk: pooch's own count takes every piece for a full one."""
        return self._path.stat().st_size if self._path.exists() else 0

    def update(self, _: int) -> None:
        have = self.bytes
        if max(have, self.total) > self._size:
            raise _Refused(f"it sends more than the {self._size:,} bytes of the file")
        self._progress(have, self._size)

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass


@contextlib.contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder for the file on its way. What a process that was killed left there goes first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_whole(path: Path, file: RemoteFile) -> bool:
    try:
        return path.stat().st_size == file.size and _sha256(path) == file.sha256
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _public(address: str) -> str:
    """The address without a user name and a password that may stand in it."""
    return re.sub(r"(?<=//)[^/@]*@", "", address)
