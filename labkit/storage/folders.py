"""The folder of a run, which Ray makes from the `storage_path` and the name of a `RunConfig`.

Ray reads the path alone as a URI, and joins the name afterwards, so a name may have what a URI can't.
"""

from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow.fs


def resolve(path: object, filesystem: pyarrow.fs.FileSystem | None) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return a filesystem, and the path there as Ray writes it, of a path or URI.

    With a filesystem, it is a path already.
    """
    folder = str(path)
    if filesystem is None:
        if "://" not in folder:
            folder = str(Path(folder).expanduser().absolute())
        filesystem, folder = pyarrow.fs.FileSystem.from_uri(folder)
    return filesystem, PurePosixPath(folder).as_posix()


def folder_of(config: Any) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the filesystem and the folder there of a run or sweep, by its `RunConfig`."""
    filesystem, folder = resolve(config.storage_path, config.storage_filesystem)
    return filesystem, PurePosixPath(folder, config.name).as_posix()


def shown_folder(path: object, name: str) -> str:
    """Return the folder as people read it: ``s3://bucket/runs/NAME``, options of a URI at its end."""
    folder, question, options = str(path), "", ""
    if "://" in folder:
        folder, question, options = folder.partition("?")
    return f"{folder.rstrip('/')}/{name}{question}{options}"
