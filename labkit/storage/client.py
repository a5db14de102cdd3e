"""The client of an object store, as a file system that s3fs, pyarrow, Ray Data and Ray Train understand.

It pickles into an endpoint and the path of a key file (`labkit.storage.keys`): no secret travels with a task.
The client of pyarrow itself would not do: it writes an object for each folder, which rclone refuses.
"""

import errno
import os
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import s3fs
from fsspec.asyn import sync, sync_wrapper
from pyarrow.fs import FSSpecHandler, PyFileSystem

from labkit.storage.explain import code_of
from labkit.storage.keys import KeyRing

_PART = 8 << 20  # bytes of one part of a large object; each open file holds one
_SMALL = 1 << 20  # bytes: what is not larger comes with one request
_DEFAULT_REGION = "us-east-1"  # which servers of one's own take, and AWS for a bucket of no region


class ObjectFiles(s3fs.S3FileSystem):
    """The objects of a store as files ``bucket/key``.

    Args:
        endpoint: URL of the store.
        keys: path of the key file; where there is none, the environment's keys serve.
        mark: changes with the keys, so that new ones are not taken for the old.
        hasty: for a preflight: no second try, and seconds in place of a minute.
    """

    protocol = ("s3", "s3a")

    def __init__(
        self, *, endpoint: str, keys: str, mark: str = "", hasty: bool = False, **options: Any
    ) -> None:
        found = KeyRing(keys).read()
        super().__init__(
            key=found.access,
            secret=found.secret,
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
            **options,
        )
        self.retries = 1  # botocore has tried already

    def make_bucket(self, name: str, *, timeout: float | None = None) -> None:
        """Make a bucket; one that is there already and ours is fine."""
        where = {} if _region() == _DEFAULT_REGION else {"LocationConstraint": _region()}
        options = {"CreateBucketConfiguration": where} if where else {}
        try:
            self.call("create_bucket", timeout=timeout, Bucket=name, **options)
        except Exception as error:
            if code_of(error) != "BucketAlreadyOwnedByYou":
                raise

    async def _call_s3(self, method: str, *args: Any, **options: Any) -> Any:
        """s3fs's own, and an unknown bucket says what is the bucket in a path."""
        try:
            return await super()._call_s3(method, *args, **options)
        except FileNotFoundError as error:
            if code_of(error) != "NoSuchBucket" or method in ("create_bucket", "list_objects_v2"):
                raise
            bucket = next((o["Bucket"] for o in (options, *args) if "Bucket" in o), "")
            text = f"there is no bucket {bucket!r}. The first part of a path is its bucket"
            raise FileNotFoundError(errno.ENOENT, f"{text}: store.bucket({bucket!r}) makes it") from error

    call_s3 = sync_wrapper(_call_s3)  # what s3fs's open files call

    def call(self, method: str, *, timeout: float | None = None, **options: Any) -> dict:
        """One request of the S3 API ("put_object"); `timeout` in seconds bounds all of it."""
        return sync(self.loop, self._call_s3, method, timeout=timeout, **options)

    def beginning(self, path: str, size: int = _SMALL) -> tuple[bytes, int]:
        """(the first bytes of an object, at most `size`; how long all of it is), in one request.

        Raises:
            FileNotFoundError: there is no such object.
        """
        return sync(self.loop, self._beginning, path, size)

    async def _beginning(self, path: str, size: int) -> tuple[bytes, int]:
        bucket, key, _ = self.split_path(path)
        answer = await self._call_s3("get_object", Bucket=bucket, Key=key, Range=f"bytes=0-{size - 1}")
        async with answer["Body"] as body:
            return await body.read(), int(answer["ContentRange"].rpartition("/")[2])


class _Handler(FSSpecHandler):
    """pyarrow's, with one request for a small object where that one makes three."""

    def open_input_stream(self, path: str) -> pa.NativeFile:
        try:
            body, size = self.fs.beginning(path)
            if len(body) == size:
                return pa.BufferReader(body)
        except OSError as error:
            if code_of(error) not in ("InvalidRange", "416"):  # an empty object has no first byte
                raise
        return super().open_input_stream(path)


def _proxies(endpoint: str) -> dict[str, Any]:
    """For a store on this machine, none: a proxy elsewhere cannot reach it. Else the environment's."""
    host = urlsplit(endpoint).hostname or ""
    return {"proxies": {}} if host in ("localhost", "::1") or host.startswith("127.") else {}


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION


def arrow(files: ObjectFiles) -> PyFileSystem:
    """`files` in the form that Ray and pyarrow take."""
    return PyFileSystem(_Handler(files))
