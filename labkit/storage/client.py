"""The client of an object store, as a file system that s3fs, pyarrow, Ray Data and Ray Train understand.

Pickled, it is an endpoint and the path of a file with the keys: nothing secret. The file is a *shared
credentials file* of AWS. botocore reads it itself, in the kernel and in every worker on this machine.
pyarrow's own S3 client is not used, because it writes an object for each folder, which rclone refuses.
"""

import configparser
import contextlib
import os
import posixpath
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import s3fs
from aiobotocore.session import AioSession
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import check_contained
from pyarrow.fs import FSSpecHandler, PyFileSystem

from labkit.errors import LabError
from labkit.files import private_file
from labkit.storage.explain import code_of
from labkit.storage.names import bad_part

_PROFILE = "labkit"  # in a file of keys
_PART = 8 << 20  # bytes of one part of a large object; each open file holds one
_SMALL = 1 << 20  # bytes: an object below this size is read with one request
_DEFAULT_REGION = "us-east-1"  # the region of servers of one's own, and AWS's for a bucket of no region


def write_keys(path: Path, access: str, secret: str) -> Path:
    """Write keys to a file that only its owner can read, unless there are some already; return its path.

    Raises:
        OSError: the folder cannot be written to.
    """
    private_file(path, f"[{_PROFILE}]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")
    return path


def read_keys(path: Path) -> tuple[str, str]:
    """Return (access key, secret key) of a file that `write_keys` has written.

    Raises:
        LabError: it is damaged.
    """
    parser, keys = configparser.RawConfigParser(), ("", "")
    with contextlib.suppress(configparser.Error, KeyError, ValueError):  # a message may have a key in it
        parser.read(path, encoding="utf-8")
        keys = parser[_PROFILE]["aws_access_key_id"], parser[_PROFILE]["aws_secret_access_key"]
    if not all(keys):
        fix = f"rm {shlex.quote(str(path))}: the lab makes new keys"
        raise LabError(f"read the keys in {path}", "it is damaged", fix)
    return keys


class ObjectFiles(s3fs.S3FileSystem):
    """The objects of a store as files ``bucket/key``.

    Args:
        endpoint: URL of the store.
        keys: path of the file with the keys. If it does not exist (on another machine), the environment's
            are used: ``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY``, else those that AWS's tools find.
        hasty: for checks and displays: no retries, and timeouts of seconds instead of a minute.
    """

    protocol = ("s3", "s3a")

    def __init__(self, *, endpoint: str, keys: str, hasty: bool = False) -> None:
        session, given = AioSession(), {}
        if keys and Path(keys).is_file():
            # On this session only: in the environment it would hide the reader's own ~/.aws/credentials.
            session = AioSession(profile=_PROFILE)
            session.set_config_variable("credentials_file", keys)
        else:
            names = {"key": "LABKIT_S3_ACCESS_KEY", "secret": "LABKIT_S3_SECRET_KEY"}
            given = {name: os.environ.get(variable) or None for name, variable in names.items()}
        super().__init__(
            **given,
            session=session,
            endpoint_url=endpoint,
            config_kwargs={
                "region_name": _region(),
                "s3": {"addressing_style": "path"},  # a bucket is no host name on such a server
                # Since 2025 clients add checksums that many servers do not know yet.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "connect_timeout": 3 if hasty else 5,
                "read_timeout": 4 if hasty else 60,
                "retries": {"mode": "standard", "total_max_attempts": 1 if hasty else 4},
                "max_pool_connections": 32,
                **_proxies(endpoint),
            },
            default_block_size=_PART,
            use_listings_cache=False,  # workers write what others list
        )
        self.retries = 1  # botocore has tried already

    # -- names are literal ---------------------------------------------------------------------------
    #
    # fsspec takes a name with ? * [ for a pattern in rm, copy, mv, get, put and cat, so deleting "a?b" would
    # delete "axb". Only `glob` gets a pattern here: ``files.rm(files.glob("lab/*.png"))``.

    def split_path(self, path: str) -> tuple[str, str, None]:
        """(bucket, key, None): a name may have "?versionId=" in it, too.

        Raises:
            LabError: a part of the path is empty, "." or "..".
        """
        plain = self._strip_protocol(path).lstrip("/")
        if plain and bad_part(plain):
            fact = 'a part of it is empty, "." or "..", which HTTP clients and servers take away'
            raise LabError(f"use {path!r:.200} in the store", fact, f"{posixpath.normpath(plain)!r:.200}")
        bucket, key, _ = super().split_path(path)
        return bucket, key and path.partition(f"{bucket}/")[2], None

    async def _expand_path(self, path: Any, recursive: bool = False, maxdepth: Any = None, **_: Any) -> list:
        names = [path] if isinstance(path, str) else path
        return await super()._expand_path(names, recursive, maxdepth, assume_literal=True)

    async def _copy(self, path1: Any, path2: Any, recursive: bool = False, **options: Any) -> None:
        if not isinstance(path1, list):
            found = await self._objects(path1, recursive, options.pop("maxdepth", None))
            into = await self._isdir(path2)
            path1, path2 = found, _targets(self._strip_protocol(path1), found, path2, into=into)
        await super()._copy(path1, path2, **options)

    async def _get(self, rpath: Any, lpath: Any, recursive: bool = False, **options: Any) -> None:
        if not isinstance(rpath, list):
            found = await self._objects(rpath, recursive, options.pop("maxdepth", None))
            into, root = os.path.isdir(lpath), os.fspath(lpath)
            rpath, lpath = found, _targets(self._strip_protocol(rpath), found, root, into=into)
            check_contained(root, lpath)  # a key may have ".." in it
        await super()._get(rpath, lpath, **options)

    async def _put(self, lpath: Any, rpath: Any, recursive: bool = False, **options: Any) -> None:
        if not isinstance(lpath, list):
            base, depth, local = os.path.abspath(lpath), options.pop("maxdepth", None), LocalFileSystem()
            found = local.find(base, maxdepth=depth) if recursive else [base]
            into = await self._isdir(rpath)
            lpath, rpath = found, _targets(base, found, rpath, into=into)
        await super()._put(lpath, rpath, **options)

    async def _objects(self, path: str, recursive: bool, maxdepth: int | None) -> list[str]:
        path = self._strip_protocol(path)
        return await self._find(path, maxdepth=maxdepth) if recursive else [path]

    # -- buckets -------------------------------------------------------------------------------------

    def make_bucket(self, name: str) -> None:
        """Create a bucket unless it exists. A key for some buckets only may not create one, and need not."""
        try:
            self.call_s3("list_objects_v2", Bucket=name, MaxKeys=1)
        except FileNotFoundError:
            where = {} if _region() == _DEFAULT_REGION else {"LocationConstraint": _region()}
            options = {"CreateBucketConfiguration": where} if where else {}
            try:
                self.call_s3("create_bucket", Bucket=name, **options)
            except FileExistsError as error:
                if code_of(error) != "BucketAlreadyOwnedByYou":  # as if another process was faster
                    raise


def _targets(base: str, found: list[str], target: str, *, into: bool) -> list[str]:
    """Where each file that was `found` at `base` or below goes.

    As `cp` does, `base` itself goes `into` a folder that exists or that `target` names by a last slash.

    Raises:
        FileNotFoundError: nothing was found.
    """
    if not found:
        raise FileNotFoundError(base)
    folder = target.rstrip("/")
    if into or target.endswith("/"):
        folder += "/" + base.rpartition("/")[2]
    return [folder + one.removeprefix(base) for one in found]


class _Handler(FSSpecHandler):
    """pyarrow's handler, but a small object takes one request instead of three."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        with contextlib.suppress(OSError):  # there is no such object, or it is empty and has no first byte
            body = self.fs.cat_file(path, start=0, end=_SMALL)
            if len(body) < _SMALL:
                return pa.BufferReader(body)
        return super().open_input_stream(path)


def arrow(files: ObjectFiles) -> PyFileSystem:
    return PyFileSystem(_Handler(files))


def _proxies(endpoint: str) -> dict[str, Any]:
    """No proxy for a store on this machine, because a proxy elsewhere cannot reach it."""
    host = urlsplit(endpoint).hostname or ""
    return {"proxies": {}} if host in ("localhost", "::1") or host.startswith("127.") else {}


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
