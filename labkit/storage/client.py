"""The client of an object store, as a file system that s3fs, pyarrow, Ray Data and Ray Train understand.

Pickled, it is an endpoint and the place of the keys (`labkit.storage.keys`): nothing secret.
pyarrow's own S3 client is not used, because it writes an object for each folder, which rclone refuses.
"""

import errno
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import s3fs
from aiobotocore.session import AioSession
from fsspec.asyn import sync, sync_wrapper
from pyarrow.fs import FSSpecHandler, PyFileSystem

from labkit.storage.explain import code_of

_PART = 8 << 20  # bytes of one part of a large object; each open file holds one
_SMALL = 1 << 20  # bytes: an object up to this size is read with one request
_DEFAULT_REGION = "us-east-1"  # the region of servers of one's own, and AWS's for a bucket of no region


class ObjectFiles(s3fs.S3FileSystem):
    """The objects of a store as files ``bucket/key``.

    Args:
        endpoint: URL of the store.
        keys, profile: a `KeyFile`. If the file does not exist (on another machine), the environment's keys
            are used: ``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY``, else those that AWS's tools find.
        hasty: for checks and displays: no retries, and timeouts of seconds instead of a minute.
    """

    protocol = ("s3", "s3a")

    def __init__(self, *, endpoint: str, keys: str, profile: str, hasty: bool = False) -> None:
        session, given = AioSession(), {}
        if keys and Path(keys).is_file():
            session = AioSession(profile=profile)
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

    def make_bucket(self, name: str) -> None:
        """Create a bucket; one that exists already and is ours is fine."""
        where = {} if _region() == _DEFAULT_REGION else {"LocationConstraint": _region()}
        try:
            self.call("create_bucket", Bucket=name, **({"CreateBucketConfiguration": where} if where else {}))
        except Exception as error:
            if code_of(error) != "BucketAlreadyOwnedByYou":
                raise

    def call(self, method: str, **options: Any) -> dict:
        """Send one request of the S3 API ("put_object")."""
        return sync(self.loop, self._call_s3, method, **options)

    async def _call_s3(self, method: str, *args: Any, **options: Any) -> Any:
        """Add to s3fs's error for an unknown bucket which part of a path is the bucket."""
        try:
            return await super()._call_s3(method, *args, **options)
        except FileNotFoundError as error:
            if code_of(error) != "NoSuchBucket" or method in ("create_bucket", "list_objects_v2"):
                raise
            bucket = next((o["Bucket"] for o in (options, *args) if "Bucket" in o), "")
            text = f"there is no bucket {bucket!r}. The first part of a path is its bucket"
            raise FileNotFoundError(errno.ENOENT, f"{text}: store.bucket({bucket!r}) makes it") from error

    call_s3 = sync_wrapper(_call_s3)  # what s3fs's open files call

    def beginning(self, path: str) -> tuple[bytes, int]:
        """Return the first MB of an object and the size of all of it, with one request."""
        return sync(self.loop, self._beginning, path)

    async def _beginning(self, path: str) -> tuple[bytes, int]:
        bucket, key, _ = self.split_path(path)
        answer = await self._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes=0-{_SMALL - 1}")
        async with answer["Body"] as body:
            return await body.read(), int(answer["ContentRange"].rpartition("/")[2])


class _Handler(FSSpecHandler):
    """pyarrow's handler, but a small object takes one request instead of three."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        try:
            body, size = self.fs.beginning(path)
            if len(body) == size:
                return pa.BufferReader(body)
        except OSError as error:
            if code_of(error) not in ("InvalidRange", "416"):  # an empty object has no first byte
                raise
        return super().open_input_stream(path)


def arrow(files: ObjectFiles) -> PyFileSystem:
    """Wrap `files` for Ray and pyarrow."""
    return PyFileSystem(_Handler(files))


def _proxies(endpoint: str) -> dict[str, Any]:
    """No proxy for a store on this machine, because a proxy elsewhere cannot reach it."""
    host = urlsplit(endpoint).hostname or ""
    return {"proxies": {}} if host in ("localhost", "::1") or host.startswith("127.") else {}


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
