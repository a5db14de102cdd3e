"""Whether an object store can be used: make a bucket, write, read, list and delete, within 10 seconds.

Ray would meet the same faults minutes later, in a worker, under a long traceback.
"""

import secrets
import socket
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

from labkit.display.formatting import without_credentials
from labkit.errors import StorageDenied, StorageError, StorageUnreachable
from labkit.storage.explain import code_of, explain

_SECONDS = 5.0  # for all steps together; one that has begun may take 4 more


def check(files: Any, bucket: str, *, endpoint: str, **known: Any) -> None:
    """Try all that the lessons do, in `bucket`, which is made if it is not there.

    Args:
        files: a hasty client, `labkit.storage.client.ObjectFiles`.
        known: about the store: `fix` and `trouble` of `labkit.storage.explain.explain`.

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
            files.make_bucket(bucket, timeout=max(deadline - time.monotonic(), 0.1))
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
        told = explain(error, attempt=attempt, endpoint=endpoint, **known)
        if not isinstance(told, StorageDenied) and _speaks_tls(endpoint):
            way = "write https:// in place of http://"
            told = StorageUnreachable(
                attempt, f"{without_credentials(endpoint)} speaks TLS, and not plain HTTP", way
            )
        raise told from None


def _speaks_tls(endpoint: str) -> bool:
    """Whether the other side of a plain endpoint shakes hands in TLS."""
    url = urlsplit(endpoint)
    if url.scheme != "http":
        return False
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    try:
        with socket.create_connection((url.hostname, url.port or 80), timeout=1) as plain:
            context.wrap_socket(plain).close()
    except (OSError, ValueError):
        return False
    return True
