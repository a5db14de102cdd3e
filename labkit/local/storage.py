"""An object store on this machine, an embedded S3 server (`labkit.local.object_server`).

store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
ray.data.read_parquet("lab/digits", filesystem=store.filesystem)
RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)
"""

import atexit
import sys
from dataclasses import dataclass
from pathlib import Path

from labkit import interrupts
from labkit.errors import expect_installed
from labkit.local import object_server
from labkit.local.lab import Lab
from labkit.local.object_server import start_public
from labkit.settings import Settings
from labkit.storage import Store, connect

__all__ = ["Store", "connect", "start", "start_public"]

_handles: list["LocalStore"] = []  # of this process; a server stops with its last handle


@dataclass(eq=False, repr=False, kw_only=True)
class LocalStore(Store):
    """A handle on the embedded server of a home. The server stops with its last handle in any process."""

    home: Path

    def _otherwise(self) -> str:
        fix = f"is its disk full? Its log is {object_server.log_of(self.home)}. "
        return fix + "If it doesn't run, storage.start() starts it again on the same data"

    def _leave(self) -> None:
        _handles.remove(self)
        if all(handle.endpoint != self.endpoint for handle in _handles):
            object_server.leave(Lab(self.home))


def start(*, bucket: str | None = None, settings: Settings | None = None) -> Store:
    """Start the embedded object store, or return the one that runs already.

    If ``LABKIT_S3_ENDPOINT`` names a store, that one is used, and nothing is started. `bucket` is as for
    `connect`.
    """
    expect_installed("start the object store", "s3fs", "pyarrow")
    settings = settings or Settings.from_env()
    bucket = bucket or settings.s3_bucket
    if settings.s3_endpoint:
        return connect(bucket=bucket, settings=settings)
    store: LocalStore | None = None

    def undo() -> None:
        if store is not None:
            store.stop()

    with interrupts.stoppable("the start of the object store", undo=undo):
        home = settings.make_home()
        endpoint, keys = object_server.start(Lab(home))
        for handle in _handles:
            if (handle.home, handle.endpoint, handle.home_bucket) == (home, endpoint, bucket):
                return handle
        store = LocalStore(endpoint, keys, bucket, home=home)
        _handles.append(store)
        interrupts.check()
        store.check_access()
    # A script stops its store when it ends. A kernel leaves that to the supervisor, because it may restart.
    if "ipykernel" not in sys.modules:
        atexit.register(store.stop)
    return store
