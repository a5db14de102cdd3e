"""A folder as a store that takes a while for each model, for `RunConfig(storage_filesystem=...)`.

In a module of its own, because workers unpickle its class by name.
"""

import time
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

SECONDS = 1.5


class SlowFolder(LocalFileSystem):
    """A folder to which a model is written slowly."""

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode and str(path).endswith("model.pt"):
            time.sleep(SECONDS)
        return super().open(path, mode, **options)


def slow_folder() -> PyFileSystem:
    return PyFileSystem(FSSpecHandler(SlowFolder(skip_instance_cache=True)))
