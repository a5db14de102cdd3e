"""The client of an object store, as a file system that s3fs, pyarrow, Ray Data and Ray Train understand.

Pickled, it is an endpoint and the path of a file with the keys: nothing secret. The file is a *shared
credentials file* of AWS, which botocore reads in the kernel and in every worker on this machine. pyarrow's
own S3 client is not used, because it writes an object for each folder, which rclone refuses.
"""

import contextlib
import os
import posixpath
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import s3fs
from aiobotocore.session import AioSession
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header
from fsspec.asyn import sync_wrapper
from pyarrow.fs import FSSpecHandler, PyFileSystem

from labkit.errors import BadInput
from labkit.storage import keys as keys_file
from labkit.storage.store import bad_part

_PART = 8 << 20  # bytes of one part of a large object; each open file holds one
_SMALL = 1 << 20  # bytes: an object below this size is read with one request
_WRITES = ("put_object", "copy_object", "create_multipart_upload")
_DEFAULT_REGION = "us-east-1"  # a bucket there names no region


class ObjectFiles(s3fs.S3FileSystem):
    """The objects of a store as files ``bucket/key``.

    Args:
        endpoint: URL of the store.
        keys: path of the file with the keys. If it does not exist (on another machine), the environment's
            are used: ``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY``, else those that AWS's tools find.
        hasty: for checks: no retries, and timeouts of seconds instead of a minute.
    """

    def __init__(self, *, endpoint: str, keys: str, hasty: bool = False) -> None:
        session = AioSession()
        from_environment = {}
        if Path(keys).is_file():
            # On this session only: in the environment it would hide the reader's own ~/.aws/credentials.
            session = AioSession(profile=keys_file.PROFILE)
            session.set_config_variable("credentials_file", keys)
        else:
            from_environment = {
                "key": os.environ.get("LABKIT_S3_ACCESS_KEY") or None,
                "secret": os.environ.get("LABKIT_S3_SECRET_KEY") or None,
            }
        # With "Expect: 100-continue", aiohttp waits for the server's word without a limit, and a server in Go
        # that refuses an object unread waits for its body, also without a limit. See docs/upstream.md.
        session.unregister("before-call.s3", add_expect_header)
        session.register("needs-retry.s3.HeadBucket", _end_of_a_redirect)
        host = urlsplit(endpoint).hostname or ""
        local = host in ("localhost", "::1") or host.startswith("127.")
        super().__init__(
            **from_environment,
            session=session,
            endpoint_url=endpoint,
            config_kwargs={
                "region_name": _region(),
                "s3": {"addressing_style": "path"},  # a bucket is no host name on such a server
                # Since 2025, clients add checksums. Many servers don't know them, and rclone sends the whole
                # object's checksum with each part of it: see docs/upstream.md.
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
                "connect_timeout": 3 if hasty else 5,
                "read_timeout": 4 if hasty else 60,
                "retries": {"mode": "standard", "total_max_attempts": 1 if hasty else 4},
                "max_pool_connections": 32,
                **({"proxies": {}} if local else {}),  # a proxy elsewhere cannot reach this machine
            },
            default_block_size=_PART,
            use_listings_cache=False,  # workers write what others list
        )
        self.retries = 1  # botocore has tried already
        self._folder = keys_file.folder_of(Path(keys)) if keys else None

    async def _call_s3(self, method: str, *options: Any, **parameters: Any) -> Any:
        if self._folder is not None and method in _WRITES:
            _refuse_what_hides(self._folder, parameters["Bucket"], parameters["Key"])
        return await super()._call_s3(method, *options, **parameters)

    call_s3 = sync_wrapper(_call_s3)  # s3fs's own goes past this class; a large file is written with it

    def make_bucket(self, name: str) -> None:
        """Create a bucket unless it exists. A key for some buckets only may not create one, and need not."""
        with contextlib.suppress(FileNotFoundError):
            self.call_s3("list_objects_v2", Bucket=name, MaxKeys=1)
            return
        options = {}
        if _region() != _DEFAULT_REGION:
            options = {"CreateBucketConfiguration": {"LocationConstraint": _region()}}
        try:
            self.call_s3("create_bucket", Bucket=name, **options)
        except FileExistsError:  # another process was faster, or another user has it
            self.call_s3("list_objects_v2", Bucket=name, MaxKeys=1)

    # fsspec takes a name with ? * [ for a pattern in rm, copy, mv and cat, so deleting "a?b" would delete
    # "axb". Only `glob` gets a pattern here: ``files.rm(files.glob("lab/*.png"))``.

    def split_path(self, path: str) -> tuple[str, str, None]:
        """Return (bucket, key, None): a name may have "?versionId=" in it, too."""
        plain = self._strip_protocol(path).lstrip("/")
        if plain and bad_part(plain):
            fact = 'a part of it is empty, "." or "..", which HTTP clients and servers take away'
            raise BadInput(f"use {path!r:.200} in the store", fact, f"{posixpath.normpath(plain)!r:.200}")
        bucket, key, _ = super().split_path(path)
        return bucket, key and path.partition(f"{bucket}/")[2], None

    async def _expand_path(self, path: Any, recursive: bool = False, maxdepth: Any = None, **_: Any) -> list:
        names = [path] if isinstance(path, str) else path
        return await super()._expand_path(names, recursive, maxdepth, assume_literal=True)

    async def _copy(self, path1: Any, path2: Any, recursive: bool = False, **options: Any) -> None:
        if isinstance(path1, str):
            base = self._strip_protocol(path1)
            path1 = await self._find(base) if recursive else [base]
            if not path1:
                raise FileNotFoundError(base)
            if await self._isdir(path2):  # as `cp` does, into a folder
                path2 = f"{path2.rstrip('/')}/{posixpath.basename(base)}"
            path2 = [path2 + name.removeprefix(base) for name in path1]
        await super()._copy(path1, path2, recursive, **options)


def _refuse_what_hides(folder: Path, bucket: str, key: str) -> None:
    """Raise a `LabError` if an object with this key would replace a folder, or be below another object.

    `folder` has the objects of the lab's own server, rclone. It refuses both after the upload, and from then
    on doesn't find what is in the folder. A look at its disk takes microseconds, and no request.
    """
    attempt = f"write the object {bucket}/{key}"
    path = folder / bucket / key.rstrip("/")
    why = "and this store keeps objects as files, so a key can't be both a folder and an object"
    if path.is_dir() or key.endswith("/"):
        name = posixpath.join(bucket, key.rstrip("/"), "part-0")
        raise BadInput(attempt, f"there is a folder of that name, {why}", f"use a key in it, such as {name}")
    for parent in path.relative_to(folder / bucket).parents:
        if (folder / bucket / parent).is_file():
            fact = f"{bucket}/{parent} is an object, {why}"
            fix = f'use another key, or store.files.rm_file("{bucket}/{parent}") first'
            raise BadInput(attempt, fact, fix)


def _end_of_a_redirect(response: Any, operation: Any, **_: Any) -> None:
    """Let the question for a bucket's region fail where its answer is a redirect without a region.

    botocore asks it after a redirect, and would ask again after this one, without an end.
    """
    is_redirect = response is not None and response[0].status_code == 301
    if is_redirect and "x-amz-bucket-region" not in response[0].headers:
        raise ClientError(response[1], operation.name)


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


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
