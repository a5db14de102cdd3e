"""An object store that runs already: connect to it, and use it from Ray, pyarrow and fsspec.

    store = storage.connect("http://host:9000")
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

`labkit.local.storage` starts one on this machine. s3fs and pyarrow (a second of CPU) are imported when a
store is first used.
"""

from labkit.storage.store import Store, check_run_name, connect, hint_for

__all__ = ["Store", "check_run_name", "connect", "hint_for"]
