"""A handle on an object store: the embedded S3 server, or any other endpoint.

    store = storage.start()                  # or the store that LABKIT_S3_ENDPOINT names
    ray.data.read_images(store.storage_path("digits", "train"), filesystem=store.filesystem)
    RunConfig(name="03", storage_path=store.storage_path("runs"), storage_filesystem=store.filesystem)

The keys are in no code, output or pickle. Workers on this machine read them from a file of mode 0600, workers
elsewhere from their environment (``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY``, or AWS's own ways).
"""

import atexit
import contextlib
import functools
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import interrupts, machine
from labkit.display import cards
from labkit.display.formatting import without_credentials
from labkit.errors import LabError, expect_installed
from labkit.settings import Settings
from labkit.storage import explain
from labkit.system import supervision

if TYPE_CHECKING:  # s3fs and pyarrow take a second to import
    import pyarrow.fs

    from labkit.storage.client import ObjectFiles
    from labkit.storage.server import Server

_handles: list["Store"] = []  # of this process on embedded servers; a server stops with its last handle


class Store:
    """A handle on an object store. Displays itself; in a ``with`` statement it stops at the end of the block.

    Attributes:
        endpoint: its URL.
        home_bucket: the bucket that `storage_path` starts with.
        keys: the file with its keys; None if botocore finds keys by itself.
    """

    def __init__(
        self, endpoint: str, keys: Path | None, home_bucket: str, server: "Server | None" = None
    ) -> None:
        self.endpoint, self.keys, self.home_bucket = endpoint, keys, home_bucket
        self._server, self._running = server, True
        explain.endpoints.add(endpoint)

    @functools.cached_property
    def files(self) -> "ObjectFiles":
        """The store as an fsspec file system, with paths ``bucket/key``."""
        return self._files()

    @functools.cached_property
    def filesystem(self) -> "pyarrow.fs.FileSystem":
        """The store for Ray and pyarrow. It pickles without a secret, and works in every worker."""
        from labkit.storage.client import arrow

        return arrow(self.files)

    def read_keys(self) -> tuple[str | None, str | None]:
        """(access key, secret key), for another client; (None, None) if clients find keys by themselves.

        Raises:
            LabError: the file with the keys is damaged.
        """
        from labkit.storage.client import read_keys

        return read_keys(self.keys) if self.keys is not None else (None, None)

    def bucket(self, name: str) -> str:
        """Create the bucket `name` unless it exists, and return the name.

        Raises:
            LabError: it cannot be created.
        """
        with self.explained(f"make the bucket {name!r}"):
            self.files.make_bucket(name)
        return name

    def storage_path(self, *parts: str) -> str:
        """The path of `parts` below the home bucket, without ``s3://``, for ``RunConfig(storage_path=…)``."""
        return "/".join((self.home_bucket, *parts))

    @contextlib.contextmanager
    def explained(self, attempt: str, then: str = "") -> Iterator[None]:
        """Raise what fails in this block as a LabError that names the store; `then` follows its fix."""
        again = "are endpoint and port right, and does the store run there?"
        if self._server is not None:
            again = f"storage.start() starts it again on the same data; its log is {self._server.log}"
        try:
            yield
        except LabError:
            raise
        except Exception as error:
            fact, fix = explain.explain(error, self.endpoint, again)
            if self._server is not None and explain.code_of(error) in ("InternalError", "500"):
                fact, fix = self._server.full_disk() or (fact, fix)
            raise LabError(attempt, fact, fix + then) from error

    def stop(self) -> None:
        """Leave the store. The embedded server stops with its last handle in any process; its data stay."""
        if not self._running:
            return
        with interrupts.stoppable("store.stop()", left="The store has been left all the same"):
            self._running = False
            atexit.unregister(self.stop)
            if self._server is None:
                if self.keys is not None:
                    shutil.rmtree(self.keys.parent, ignore_errors=True)  # of `connect`
                return
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
        whose = "not started by the lab" if self._server is None else "the lab's own, rclone"
        dim = f"{without_credentials(self.endpoint)} · {whose} · keys ••••"
        gone = self._server is not None and not self._server.alive
        status = "stopped" if not self._running else ("bad", "not running") if gone else ("ok", "in use")
        return cards.card("Object store", status, cards.text(f"bucket: {self.home_bucket}"), dim=dim)

    def _files(self, **options: Any) -> "ObjectFiles":
        from labkit.storage.client import ObjectFiles

        return ObjectFiles(endpoint=self.endpoint, keys=str(self.keys or ""), **options)

    def _check_access(self) -> None:
        """Make the home bucket; write, read and delete an object.

        Ray would meet the same errors minutes later, in a worker, with a long traceback.
        """
        files, path = self._files(hasty=True), f"{self.home_bucket}/.labkit/check-{secrets.token_hex(4)}"
        with self.explained(f"make the bucket {self.home_bucket!r}"):
            files.make_bucket(self.home_bucket)
        with self.explained(f"write, read and delete an object in the bucket {self.home_bucket!r}"):
            files.pipe_file(path, b"check")
            files.cat_file(path)
            files.rm_file(path)


def start(*, bucket: str = "lab", settings: Settings | None = None) -> Store:
    """Start the embedded object store, or return the one that runs already.

    If ``LABKIT_S3_ENDPOINT`` names a store, that one is used, and nothing is started.

    Args:
        bucket: the store's home bucket, which is made if it does not exist.

    Raises:
        LabError: no server could be started, or it cannot be used.
        RunStopped: the reader interrupted; nothing is left running.
    """
    expect_installed("start the object store", "s3fs", "pyarrow")
    settings = Settings.given(settings)
    if settings.s3_endpoint:
        return connect(bucket=bucket, settings=settings)
    store: Store | None = None
    undo = interrupts.stoppable("the start of the object store", undo=lambda: store and store.stop())
    with undo as check:
        from labkit.storage import server as object_server  # a second of imports, which an interrupt may meet

        server = object_server.start(settings, check)
        for handle in _handles:
            if handle._server == server and handle.home_bucket == bucket:
                return handle
        store = Store(server.endpoint, server.keys, bucket, server)
        _handles.append(store)
        check()
        store._check_access()
    # A script stops its store when it ends. A kernel leaves that to the supervisor, because it may restart.
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

    The keys are kept in a file of mode 0600 until this process ends, for the workers on this machine.
    Without keys here and in the settings, those that AWS's own tools find are used.

    Args:
        endpoint, access_key, secret_key: default: ``LABKIT_S3_ENDPOINT`` and so on.
        bucket: the store's home bucket, which is made if it does not exist.

    Raises:
        LabError: the store cannot be used; known within seconds.
    """
    expect_installed("connect to an object store", "s3fs", "pyarrow")
    settings = Settings.given(settings)
    url = str(endpoint or settings.s3_endpoint or "").rstrip("/")
    shown = without_credentials(url)
    if not re.fullmatch(r"https?://[^\s/?#]+", url):
        fix = 'storage.connect("http://host:9000"), or export LABKIT_S3_ENDPOINT=http://host:9000'
        raise LabError("connect to an object store", f"the endpoint is {shown!r}, which is not a URL", fix)
    if access_key is None and secret_key is None:
        access_key, secret_key = settings.s3_access_key, settings.s3_secret_key
    if bool(access_key) != bool(secret_key):  # the given one would be ignored, and AWS's own pair used
        fix = f"give both or none: storage.connect({shown!r}, access_key, secret_key)"
        raise LabError("connect to an object store", "one of the two keys is missing", fix)
    keys = None
    if access_key:
        from labkit.storage.client import write_keys

        keys = write_keys(
            Path(tempfile.mkdtemp(prefix="labkit-keys-")) / "credentials", access_key, secret_key
        )
    store = Store(url, keys, bucket)
    atexit.register(store.stop)
    left = "This process is not connected to it"
    with interrupts.stoppable(f"the connection to {shown}", undo=store.stop, left=left):
        store._check_access()
    return store


@dataclass(frozen=True)
class PublicStore:
    """A running server; `endpoint` is its URL."""

    endpoint: str
    folder: Path
    home: Path
    group: str

    def stop(self) -> None:
        """Stop it, and delete what it served."""
        supervision.stop(self.home, self.group)
        shutil.rmtree(self.folder, ignore_errors=True)


def start_public(tables: Mapping[str, Any], settings: Settings | None = None) -> PublicStore:
    """Serve Arrow tables as Parquet objects ``bucket/key``, like a public bucket: to be read, without keys.

    It is a second server, ``rclone serve s3 --read-only`` on 127.0.0.1, which ends with this process at the
    latest. It serves a folder of its own: every user of this machine can read what is in it.

    Raises:
        LabError: rclone is not installed, or it does not start.
    """
    attempt = "start a public object server"
    expect_installed(attempt, "s3fs", "pyarrow")
    import pyarrow.parquet

    from labkit.storage.server import serve  # which loads s3fs

    if (program := machine.rclone()) is None:
        raise LabError(attempt, "rclone is not installed", "make setup")
    home, group = Settings.given(settings).make_home(), f"public-{secrets.token_hex(4)}"
    folder, log, port = home / "objects" / group, home / "objects" / "public.log", machine.free_port()
    public = PublicStore(f"http://127.0.0.1:{port}", folder, home, group)
    for name, table in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(table, folder / name)
    command = [program, "serve", "s3", "--read-only", str(folder)]
    if not serve(command, port, log, home=home, group=group, keep=1):
        public.stop()
        raise LabError(attempt, "it does not listen", f"its log is {log}")
    return public
