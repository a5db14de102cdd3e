"""An object store, either the embedded S3 server or any other.

    store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
    ray.data.read_parquet("lab/digits.parquet", filesystem=store.filesystem)
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

s3fs and pyarrow (a second of CPU) are imported when a store is first used.
"""

from labkit.local.object_server import start_public
from labkit.storage.store import Store, check_run_name, connect, hint_for, start

__all__ = ["Store", "check_run_name", "connect", "hint_for", "start", "start_public"]
