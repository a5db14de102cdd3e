"""From an exception of s3fs or botocore to the fact and the fix of the lab's error.

Exceptions are recognized by their names and S3's codes, so that nothing has to be imported for it.
"""

import weakref
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from labkit.display.formatting import without_credentials

stores: "weakref.WeakSet[Any]" = weakref.WeakSet()  # of this process, for `hint_for`
_SILENT = {  # exceptions of a store that is gone or does not answer
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "FSTimeoutError",
    "ConnectionClosedError", "ServerDisconnectedError", "ConnectionRefusedError",
}  # fmt: skip
_KEYS = "LABKIT_S3_ACCESS_KEY and LABKIT_S3_SECRET_KEY on every node: are they complete, and of this store?"
_RIGHT = "ask who runs the store for the right to do that, or name a bucket in which you have it: bucket=…"
_WAY = (
    "is it http:// or https://? For a certificate of your own: export AWS_CA_BUNDLE=…; "
    "for a store that needs no proxy: export no_proxy=… with its host"
)
_FIXES = {
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "NoCredentialsError", "PartialCredentialsError"),
        f"check {_KEYS}",
    ),
    **dict.fromkeys(("AccessDenied", "403", "BucketAlreadyExists"), _RIGHT),
    **dict.fromkeys(("ProxyConnectionError", "SSLError"), _WAY),
    "NoSuchBucket": 'store.bucket("…") makes one, or name one that exists',
    "RequestTimeTooSkewed": "set the clock of this machine or of the store: timedatectl set-ntp true",
}


def explain(error: BaseException, endpoint: str, again: str | None = None) -> tuple[str, str]:
    """Return (fact, fix) for an error that s3fs or botocore raised.

    Args:
        again: what to do if the store does not answer; default: a hint at the endpoint.
    """
    who = without_credentials(endpoint)
    again = again or "are endpoint and port right, and does the store run there?"
    code, kinds = code_of(error), [kind.__name__ for link in _links(error) for kind in type(link).__mro__]
    for name in (code, *kinds):
        if name in _FIXES:
            return f"{who} refused it: {name}", _FIXES[name]
        if name in _SILENT:
            return f"{who} does not answer: {name}", again
    if "An error occurred ()" in str(error):
        fact = f"{who} answers, but not as an S3 store does"
        return fact, "name the store's S3 endpoint, not its web console (MinIO's are on ports 9000 and 9001)"
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    fix = f"look up S3's error code {code}" if code else again
    return f"{who}: {type(error).__name__}: {without_credentials(said)[:200]}", fix


def hint_for(text: str) -> str | None:
    """What to do about an error text from a worker; None unless a store of this process did not answer."""
    if not any(name in text for name in _SILENT):
        return None  # these are names of urllib3 and aiohttp, too, so the text must also name the store
    if any(urlsplit(store.endpoint).netloc in text for store in stores):
        return (
            "the object store does not answer. storage.start() starts the lab's own again, on the same data; "
            "a run of the same name then goes on from its last checkpoint"
        )
    return None


def code_of(error: BaseException) -> str:
    """S3's code in an exception or in what caused it; "" if there is none."""
    responses = (getattr(link, "response", None) for link in _links(error))
    codes = (r.get("Error", {}).get("Code") for r in responses if isinstance(r, dict))
    return str(next(filter(None, codes), ""))


def _links(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
