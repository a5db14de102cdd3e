"""Whether an object store can be used: make a bucket, write, read, list and delete, within 10 seconds.

Ray would meet the same faults minutes later, in a worker, under a long traceback.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

from labkit.errors import StorageError
from labkit.s3_faults import code_of, explain

__all__ = ["check"]

_SECONDS = 6.0  # for all steps together; one that has begun may take 4 more
_THERE = ("BucketAlreadyOwnedByYou",)


def check(files: Any, bucket: str, *, endpoint: str, fix: str | None = None) -> None:
    """Try all that the lessons do, in `bucket`, which is made if it is not there.

    Args:
        files: a hasty client, `labkit.s3_client.ObjectFiles`.
        fix: what to do if nobody answers.

    Raises:
        StorageUnreachable, StorageDenied, StorageError: a step failed; the error names it.
    """
    deadline = time.monotonic() + _SECONDS
    key, body = f".labkit/preflight-{secrets.token_hex(4)}", secrets.token_bytes(64)
    where = {"Bucket": bucket, "Key": key}
    attempt = ""

    def call(method: str, **options: Any) -> dict:
        return files.call(method, timeout=max(deadline - time.monotonic(), 0.1), **options)

    try:
        attempt = f"look into the bucket {bucket!r}"
        try:
            call("list_objects_v2", Bucket=bucket, MaxKeys=1)
        except Exception as error:
            if code_of(error) != "NoSuchBucket":
                raise
            attempt = f"make the bucket {bucket!r}"
            _make(call, bucket)
        attempt = f"write an object into the bucket {bucket!r}"
        call("put_object", **where, Body=body)
        attempt = f"read an object from the bucket {bucket!r}"
        if files.cat_file(f"{bucket}/{key}") != body:
            raise StorageError(attempt, "what came is not what was written", "look at the store's log")
        attempt = f"list the bucket {bucket!r}"
        listed = call("list_objects_v2", Bucket=bucket, Prefix=key).get("Contents", [])
        if [entry["Key"] for entry in listed] != [key]:
            fact = "an object that was just written is not listed"
            raise StorageError(attempt, fact, "take a store that lists at once, as S3 and MinIO do")
        attempt = f"delete an object from the bucket {bucket!r}"
        call("delete_object", **where)
    except Exception as error:
        raise explain(error, attempt=attempt, endpoint=endpoint, fix=fix) from None


def _make(call: Callable[..., dict], bucket: str) -> None:
    try:
        call("create_bucket", Bucket=bucket)
    except Exception as error:  # another process made it in between
        if code_of(error) not in _THERE:
            raise
