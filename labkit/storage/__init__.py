"""An object store, either the embedded S3 server or any other, and uploads into it.

    store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
    upload_shards(train, store, "digits")
    ray.data.read_parquet("digits/digits/train-shards", filesystem=store.filesystem)
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

s3fs and pyarrow (a second of CPU) are imported when a store is first used.
"""

from labkit.storage.explain import hint_for
from labkit.storage.names import check_run_name
from labkit.storage.store import PublicStore, Store, connect, start, start_public
from labkit.storage.uploads import Uploaded, upload, upload_shards

__all__ = [
    "PublicStore",
    "Store",
    "Uploaded",
    "check_run_name",
    "connect",
    "hint_for",
    "start",
    "start_public",
    "upload",
    "upload_shards",
]
