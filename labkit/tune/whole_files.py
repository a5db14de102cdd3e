"""A local file system on which a file is whole, or as it was before: never half written.

    tune.RunConfig(storage_path=..., storage_filesystem=whole_files.filesystem())

Tune copies the state of a sweep and the results of all its trials again and again over the older ones. A
process that is killed in the middle of it leaves half a file, of a trial that was long finished, too. Here a
file is written under another name in the same folder, and gets its own when it is closed. Object stores (S3,
MinIO) do as much by themselves. It is meant for a process that dies; a machine that loses its power may lose
what it had not yet written to the disk.
"""

import contextlib
import itertools
import os
import shutil
from typing import Any

import pyarrow
import pyarrow.fs

_PART = ".labkit-part"  # the end of the names of files that are being written
_numbers = itertools.count()


def filesystem() -> pyarrow.fs.PyFileSystem:
    """The local file system, with files that are whole."""
    return pyarrow.fs.PyFileSystem(WholeFiles())


class WholeFiles(pyarrow.fs.FileSystemHandler):
    """What `pyarrow.fs.PyFileSystem` asks for; all but writing is `pyarrow.fs.LocalFileSystem`'s."""

    def __init__(self) -> None:
        self._local = pyarrow.fs.LocalFileSystem()

    def __reduce__(self) -> tuple:
        return WholeFiles, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WholeFiles)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def get_type_name(self) -> str:
        return "whole-files"

    def normalize_path(self, path: str) -> str:
        return self._local.normalize_path(path)

    def get_file_info(self, paths: list[str]) -> list[pyarrow.fs.FileInfo]:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: pyarrow.fs.FileSelector) -> list[pyarrow.fs.FileInfo]:
        # What a killed process had begun to write is nobody's file.
        return [info for info in self._local.get_file_info(selector) if not info.path.endswith(_PART)]

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._local.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._local.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("this would empty the whole disk")

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._local.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        part = _part_of(dest)
        try:
            shutil.copyfile(src, part)
            os.replace(part, dest)
        except BaseException:
            _remove(part)
            raise

    def open_input_stream(self, path: str) -> pyarrow.NativeFile:
        return self._local.open_input_stream(path)

    def open_input_file(self, path: str) -> pyarrow.NativeFile:
        return self._local.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        return pyarrow.PythonFile(_WholeFile(path), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> pyarrow.NativeFile:
        raise NotImplementedError("a file is written as a whole: open_output_stream")


class _WholeFile:
    """A file that is written under another name, and gets its own when it is closed."""

    def __init__(self, path: str) -> None:
        self._path, self._part = path, _part_of(path)
        self._file = open(self._part, "wb")  # noqa: SIM115, it outlives this
        self._sound = True

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except BaseException:
            self._sound = False  # a full disk: what is there must not take the place of the older file
            raise

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._file.close()
            if self._sound:
                os.replace(self._part, self._path)
        finally:
            _remove(self._part)


def _part_of(path: str) -> str:
    """A name beside `path` that no other writer has, in this process or another."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:100]}.{os.getpid()}-{next(_numbers)}{_PART}")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
