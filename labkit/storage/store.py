"""An object store for the lessons: the lab's own S3 server, or any other endpoint.

    store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
    store                                    # displays itself
    ray.data.read_images(store.storage_path("digits", "train"), filesystem=store.filesystem)
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

The keys stand in no code, no output and no pickle: workers on this machine read them from a file of mode
0600, workers elsewhere from their own environment (``LABKIT_S3_ACCESS_KEY``, ``LABKIT_S3_SECRET_KEY``).
"""

import atexit
import contextlib
import functools
import hashlib
import os
import platform
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from labkit.display.formatting import without_credentials
from labkit.errors import StorageError
from labkit.settings import Settings
from labkit.storage import card as store_card
from labkit.storage import explain as s3_faults
from labkit.storage import preflight
from labkit.storage import server as object_server
from labkit.storage.card import Bucket
from labkit.storage.keys import KeyRing, Keys

if TYPE_CHECKING:
    import pyarrow.fs

    from labkit.storage.client import ObjectFiles

_PAGES = 10  # of 1,000 objects each: as far as a display counts in one bucket
_BUCKETS_SHOWN = 8

_handles: list["Store"] = []  # of this process, on the lab's own server; it runs until the last one stops


class Store:
    """A handle on an object store. Displays itself; as a context manager it ends with the block.

    Attributes:
        endpoint: its URL.
        home_bucket: the bucket that `storage_path` starts with.
    """

    def __init__(
        self, *, endpoint: str, keys: KeyRing, home_bucket: str, server: object_server.Server | None = None
    ) -> None:
        self.endpoint, self.home_bucket = endpoint, home_bucket
        self._keys, self._server, self._running = keys, server, True
        access = keys.read().access or ""
        self._mark = hashlib.sha256(access.encode()).hexdigest()[:12]

    # -- what it gives ------------------------------------------------------------------------------

    @property
    def is_ours(self) -> bool:
        """Whether it is the lab's own server (and `stop` may stop it)."""
        return self._server is not None

    @functools.cached_property
    def files(self) -> "ObjectFiles":
        """The store as an fsspec file system, with paths ``bucket/key``."""
        return self._files()

    @functools.cached_property
    def filesystem(self) -> "pyarrow.fs.FileSystem":
        """The store for Ray and pyarrow. It pickles without a secret, and works in every worker."""
        from labkit.storage.client import arrow

        return arrow(self.files)

    def bucket(self, name: str) -> str:
        """The bucket `name`, made if it is not there.

        Raises:
            StorageError: it cannot be made.
        """
        with self.explained(f"make the bucket {name!r}"):
            try:
                self.files.call("list_objects_v2", Bucket=name, MaxKeys=1)
            except FileNotFoundError:  # a key for some buckets only may not make one, and need not
                self.files.make_bucket(name)
        return name

    def storage_path(self, *parts: str) -> str:
        """A path for ``RunConfig(storage_path=…, storage_filesystem=store.filesystem)``, without ``s3://``.

        Args:
            parts: of the path below the store's home bucket.
        """
        for part in parts:
            if not isinstance(part, str) or not part or not set(part.split("/")).isdisjoint({"", ".", ".."}):
                fix = 'write parts such as "runs", "03-torch"'
                raise StorageError("make a path in the store", f"{part!r} is no part of one", fix)
        return "/".join((self.home_bucket, *parts))

    def buckets(self) -> list[Bucket]:
        """All buckets with what is in them; up to 10,000 objects of each are counted.

        Raises:
            StorageError: the store does not answer, or refuses.
        """
        with self.explained("list the buckets"):
            files = self._files(hasty=True)  # a display must not wait for a store that is gone
            try:
                names = [b["Name"] for b in files.call("list_buckets").get("Buckets", [])]
            except PermissionError:  # many keys are for one bucket only
                names = [self.home_bucket]
            return [_counted(files, name) for name in names[:_BUCKETS_SHOWN]]

    @contextlib.contextmanager
    def explained(self, attempt: str) -> Iterator[None]:
        """What fails in this block is told as a StorageError that names the store."""
        try:
            yield
        except Exception as error:
            raise s3_faults.explain(error, attempt=attempt, endpoint=self.endpoint, **self._known()) from None

    # -- how it ends --------------------------------------------------------------------------------

    def stop(self) -> None:
        """Leave the store. The lab's own server stops with its last handle of all processes; data stay."""
        if not self._running:
            return
        self._running = False
        atexit.unregister(self.stop)
        if self._server is None:
            self._keys.forget()
            return
        if self in _handles:
            _handles.remove(self)
        if all(handle._server != self._server for handle in _handles):
            self._server.leave()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- how it shows itself ------------------------------------------------------------------------

    def __repr__(self) -> str:
        where = without_credentials(self.endpoint)
        return f"Store({where}, {'stopped' if not self._running else f'bucket {self.home_bucket!r}'})"

    def _repr_html_(self) -> str:
        whose = f"the lab's own, {self._server.program}" if self._server else "not started by the lab"
        found: list[Bucket] | StorageError | None = None
        if self._running:
            try:
                found = self.buckets()
            except StorageError as error:
                found = error
        return store_card.draw(without_credentials(self.endpoint), whose, found)

    # -- inside -------------------------------------------------------------------------------------

    def _files(self, **options: Any) -> "ObjectFiles":
        from labkit.storage.client import ObjectFiles

        return ObjectFiles(endpoint=self.endpoint, keys=self._keys.path, mark=self._mark, **options)

    def _known(self) -> dict[str, Any]:
        """What `explain` cannot know: of the lab's own server, how to start it and what ails it."""
        if self._server is None:
            return {}
        fix = f"store = storage.start() starts it again on the same data; its log is {self._server.log}"
        return {"fix": fix, "trouble": self._server.trouble}

    def _checked(self) -> "Store":
        files = self._files(hasty=True)
        preflight.check(files, self.home_bucket, endpoint=self.endpoint, **self._known())
        return self


def start(*, bucket: str = "lab", settings: Settings | None = None) -> Store:
    """Start the lab's own object store, or return the one that runs already.

    Where ``LABKIT_S3_ENDPOINT`` names a store, that one is used, and nothing is started.

    Args:
        bucket: the store's home bucket, made if it is not there.

    Raises:
        StorageError: no server could be started, or one of its functions fails.
    """
    settings = settings or Settings.from_env()
    if settings.s3_endpoint:
        return connect(bucket=bucket, settings=settings)
    server = object_server.start(settings)
    for handle in _handles:
        if handle._server == server and handle.home_bucket == bucket:
            return handle
    store = Store(endpoint=server.endpoint, keys=server.keys, home_bucket=bucket, server=server)
    _undone_unless(store._checked, store.stop)
    _handles.append(store)
    # A script stops its store when it ends. A kernel leaves that to the watchdog: it may be a restart.
    if "ipykernel" not in sys.modules:
        atexit.register(store.stop)
    return store


def connect(
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    *,
    bucket: str = "lab",
    settings: Settings | None = None,
) -> Store:
    """Use an object store that runs already (MinIO, AWS, …). It is never stopped from here.

    The keys are kept in a file of mode 0600 in ``LABKIT_HOME`` until this process ends, for the workers
    on this machine. Without keys here and in the settings, those that AWS's own tools find are used.

    Args:
        endpoint, access_key, secret_key: default: ``LABKIT_S3_ENDPOINT`` and so on.
        bucket: the store's home bucket, made if it is not there.

    Raises:
        StorageUnreachable, StorageDenied, StorageError: a step of the preflight failed, within 10 s.
    """
    settings = settings or Settings.from_env()
    endpoint = str(endpoint or settings.s3_endpoint or "").rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#]+", endpoint):
        fact = (
            f"the endpoint is {without_credentials(endpoint)!r}, and no URL"
            if endpoint
            else "no endpoint is named"
        )
        fix = 'storage.connect("http://host:9000"), or export LABKIT_S3_ENDPOINT=http://host:9000'
        raise StorageError("connect to an object store", fact, fix)
    if (access_key is None) != (secret_key is None):
        fact = "an access key and a secret key belong together, and one of them is missing"
        raise StorageError("connect to an object store", fact, "give both, or neither")
    if access_key is None:
        access_key, secret_key = settings.s3_access_key, settings.s3_secret_key
    folder = settings.home / "objects"
    _forget_the_dead(folder)
    ring = KeyRing(str(folder / f"keys-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.json"))
    if access_key and secret_key:
        ring.make(Keys(access=access_key, secret=secret_key))
    store = Store(endpoint=endpoint, keys=ring, home_bucket=bucket)
    atexit.register(store.stop)
    return _undone_unless(store._checked, store.stop)


def _counted(files: "ObjectFiles", name: str) -> Bucket:
    objects = size = 0
    more: dict[str, str] = {}
    for _ in range(_PAGES):
        page = files.call("list_objects_v2", Bucket=name, **more)
        objects += len(page.get("Contents", []))
        size += sum(entry["Size"] for entry in page.get("Contents", []))
        if not page.get("IsTruncated"):
            return Bucket(name=name, objects=objects, bytes=size)
        more = {"ContinuationToken": page["NextContinuationToken"]}
    return Bucket(name=name, objects=objects, bytes=size, more=True)


def _undone_unless(do: Callable[[], Store], undo: Callable[[], None]) -> Store:
    try:
        return do()
    except BaseException:
        undo()
        raise


def _forget_the_dead(folder: Path) -> None:
    """Remove the keys of processes of this host that were killed."""
    for path in folder.glob(f"keys-{platform.node()}-*-*.json"):
        pid = path.name.split("-")[-2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)
