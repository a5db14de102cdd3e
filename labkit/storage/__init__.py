"""An object store, either the embedded S3 server or any other, and uploads into it.

    store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
    upload_shards(train, store, "digits")
    ray.data.read_parquet("digits/digits/train-shards", filesystem=store.filesystem)
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

s3fs and pyarrow (a second of CPU) are imported when a store is first used.
"""

from labkit.storage.server import start_public
from labkit.storage.store import Store, check_run_name, connect, hint_for, start
from labkit.storage.uploads import upload, upload_shards

__all__ = [
    "Store",
    "check_run_name",
    "connect",
    "hint_for",
    "start",
    "start_public",
    "upload",
    "upload_shards",
]
