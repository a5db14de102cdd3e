"""A handle on an object store: the embedded S3 server, or any other endpoint.

    store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
    store                                    # displays itself
    ray.data.read_images(store.storage_path("digits", "train"), filesystem=store.filesystem)
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

The keys are in no code, output or pickle. Workers on this machine read them from a file of mode 0600, workers
elsewhere from their environment (``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY``, or AWS's own ways).
"""

import atexit
import contextlib
import functools
import os
import platform
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from labkit.display import cards
from labkit.display.formatting import size, without_credentials
from labkit.errors import StorageError
from labkit.settings import Settings
from labkit.storage import server as object_server
from labkit.storage.explain import to_storage_error
from labkit.storage.keys import KeyFile
from labkit.system import interrupts

if TYPE_CHECKING:
    import pyarrow.fs

    from labkit.storage.client import ObjectFiles

_PAGES = 10  # of 1,000 objects each: up to here a display counts in one bucket
_BUCKETS_SHOWN = 8

_handles: list["Store"] = []  # of this process on embedded servers; a server stops with its last handle


class Bucket(NamedTuple):
    """What is in a bucket: how many objects, and their bytes. `more`: there are more than were counted."""

    name: str
    objects: int
    bytes: int
    more: bool


class Store:
    """A handle on an object store. Displays itself; in a ``with`` statement it stops at the end of the block.

    Attributes:
        endpoint: its URL.
        home_bucket: the bucket that `storage_path` starts with.
    """

    def __init__(
        self, endpoint: str, keys: KeyFile, home_bucket: str, server: object_server.Server | None = None
    ) -> None:
        self.endpoint, self.home_bucket = endpoint, home_bucket
        self._keys, self._server, self._running = keys, server, True

    @property
    def is_ours(self) -> bool:
        """Whether it is the embedded server, which `stop` may stop."""
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
        """Create the bucket `name` unless it exists, and return the name.

        Raises:
            StorageError: it cannot be created.
        """
        if not isinstance(name, str) or not name:
            raise StorageError("make a bucket", f"its name is {name!r}", 'pass a name such as "digits"')
        self._make_bucket(self.files, name)
        return name

    def storage_path(self, *parts: str) -> str:
        """A path for ``RunConfig(storage_path=…, storage_filesystem=store.filesystem)``, without ``s3://``.

        Args:
            parts: of the path below the store's home bucket.
        """
        for part in parts:
            if not isinstance(part, str) or not set(part.split("/")).isdisjoint({"", ".", ".."}):
                fix = 'pass parts such as "runs", "03-torch"'
                raise StorageError("make a path in the store", f"{part!r} cannot be a part of one", fix)
        return "/".join((self.home_bucket, *parts))

    def buckets(self) -> list[Bucket]:
        """Return all buckets and what is in them; up to 10,000 objects of each are counted.

        Raises:
            StorageError: the store does not answer, or refuses.
        """
        with self.explained("list the buckets"):
            files = self._files(hasty=True)  # a display must not wait for a store that is gone
            try:
                names = [bucket["Name"] for bucket in files.call("list_buckets").get("Buckets", [])]
            except PermissionError:  # many keys are for one bucket only
                names = [self.home_bucket]
            return [_count(files, name) for name in names[:_BUCKETS_SHOWN]]

    @contextlib.contextmanager
    def explained(self, attempt: str) -> Iterator[None]:
        """Raise what fails in this block as a StorageError that names the store."""
        known: dict[str, Any] = {}
        if self._server is not None:
            fix = f"store = storage.start() starts it again on the same data; its log is {self._server.log}"
            known = {"fix": fix, "trouble": self._server.trouble}
        try:
            yield
        except Exception as error:
            raise to_storage_error(error, attempt=attempt, endpoint=self.endpoint, **known) from None

    def stop(self) -> None:
        """Leave the store. The embedded server stops with its last handle in any process; its data stay."""
        if not self._running:
            return
        self._running = False
        atexit.unregister(self.stop)
        if self._server is None:
            self._keys.delete()
            return
        if self in _handles:
            _handles.remove(self)
        if all(handle._server != self._server for handle in _handles):
            self._server.leave()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        status = f"bucket {self.home_bucket!r}" if self._running else "stopped"
        return f"Store({without_credentials(self.endpoint)}, {status})"

    def _repr_html_(self) -> str:
        whose = f"the lab's own, {self._server.program}" if self._server else "not started by the lab"
        dim = f"{without_credentials(self.endpoint)} · {whose} · keys ••••"
        if not self._running:
            return cards.card("Object store", "stopped", dim=dim)
        try:
            found = self.buckets()
        except StorageError as error:
            return cards.card(
                "Object store", ("bad", "not usable"), cards.text(f"{error.fact}; {error.fix}"), dim=dim
            )
        rows = [(b.name, f"{b.objects:,}{' or more' * b.more}", size(b.bytes)) for b in found]
        table = cards.rule(cards.table(("bucket", "objects", "size"), rows))
        return cards.card("Object store", ("ok", "running"), table, dim=dim)

    def _files(self, **options: Any) -> "ObjectFiles":
        from labkit.storage.client import ObjectFiles

        keys = self._keys
        return ObjectFiles(endpoint=self.endpoint, keys=keys.path, profile=keys.profile, **options)

    def _make_bucket(self, files: "ObjectFiles", name: str) -> None:
        with self.explained(f"look into the bucket {name!r}"):
            try:
                files.call("list_objects_v2", Bucket=name, MaxKeys=1)
                return
            except FileNotFoundError:  # a key for some buckets only may not make one, and need not
                pass
        with self.explained(f"make the bucket {name!r}"):
            files.make_bucket(name)

    def _check_access(self) -> "Store":
        """Make the home bucket; write, read and delete an object, or stop the store.

        Ray would meet the same errors minutes later, in a worker, with a long traceback.
        """
        files, name = self._files(hasty=True), self.home_bucket
        path, body = f"{name}/.labkit/check-{secrets.token_hex(4)}", secrets.token_bytes(64)
        try:
            self._make_bucket(files, name)
            with self.explained(f"write an object into the bucket {name!r}"):
                files.pipe_file(path, body)
            with self.explained(attempt := f"read an object from the bucket {name!r}"):
                if files.cat_file(path) != body:
                    raise StorageError(attempt, "it is not what was written", "look at the store's log")
            with self.explained(f"delete an object from the bucket {name!r}"):
                files.rm_file(path)
        except BaseException:
            self.stop()
            raise
        return self


def start(*, bucket: str = "lab", settings: Settings | None = None) -> Store:
    """Start the embedded object store, or return the one that runs already.

    If ``LABKIT_S3_ENDPOINT`` names a store, that one is used, and nothing is started.

    Args:
        bucket: the store's home bucket, which is made if it does not exist.

    Raises:
        StorageError: no server could be started, or it cannot be used.
        RunStopped: the reader interrupted; nothing is left running.
    """
    settings = Settings.given(settings)
    if settings.s3_endpoint:
        return connect(bucket=bucket, settings=settings)
    with interrupts.stoppable("the start of the object store") as check:
        server = object_server.start(settings, check)
    for handle in _handles:
        if handle._server == server and handle.home_bucket == bucket:
            return handle
    store = Store(server.endpoint, server.keys, bucket, server)._check_access()
    _handles.append(store)
    # A script stops its store when it ends. A kernel leaves that to the watchdog, because it may restart.
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
        bucket: the store's home bucket, which is made if it does not exist.

    Raises:
        StorageError: the store cannot be used; known within seconds.
    """
    attempt = "connect to an object store"
    settings = Settings.given(settings)
    endpoint = str(endpoint or settings.s3_endpoint or "").rstrip("/")
    if not re.fullmatch(r"https?://[^\s/?#]+", endpoint):
        fact = f"the endpoint is {without_credentials(endpoint)!r}, which is not a URL"
        fix = 'storage.connect("http://host:9000"), or export LABKIT_S3_ENDPOINT=http://host:9000'
        raise StorageError(attempt, fact if endpoint else "no endpoint is named", fix)
    if (access_key is None) != (secret_key is None):
        fact = "an access key and a secret key belong together, and one of them is missing"
        raise StorageError(attempt, fact, "pass both, or neither")
    if access_key is None:
        access_key, secret_key = settings.s3_access_key, settings.s3_secret_key
    keys = KeyFile()
    if access_key and secret_key:
        folder = settings.make_home() / "objects"
        _delete_keys_of_the_dead(folder)
        path = folder / f"keys-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir(exist_ok=True, mode=0o700)
        keys = KeyFile.create(path, access_key, secret_key)
    store = Store(endpoint, keys, bucket)
    atexit.register(store.stop)
    return store._check_access()


def _count(files: "ObjectFiles", name: str) -> Bucket:
    objects = total = 0
    more: dict[str, str] = {}
    for _ in range(_PAGES):
        page = files.call("list_objects_v2", Bucket=name, **more)
        objects += len(page.get("Contents", []))
        total += sum(entry["Size"] for entry in page.get("Contents", []))
        if not page.get("IsTruncated"):
            return Bucket(name, objects, total, False)
        more = {"ContinuationToken": page["NextContinuationToken"]}
    return Bucket(name, objects, total, True)


def _delete_keys_of_the_dead(folder: Path) -> None:
    """Delete the keys of processes of this host that were killed."""
    for path in folder.glob(f"keys-{platform.node()}-*-*"):
        pid = path.name.split("-")[-2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            path.unlink(missing_ok=True)
