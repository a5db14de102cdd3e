"""From an exception of s3fs or botocore to the lab's error, with the fact and the fix.

Exceptions are recognized by their names and S3's codes, so that nothing has to be imported for it.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from labkit.display.formatting import without_credentials
from labkit.errors import StorageError

_SILENT = {"ConnectTimeoutError", "ReadTimeoutError", "FSTimeoutError", "TimeoutError"}
_BROKEN = {"ConnectionClosedError", "ServerDisconnectedError", "ClientPayloadError", "IncompleteRead"}
_NO_KEYS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}
_NO_RIGHT = (
    "{who} knows this key, but the key has no right to do that",
    "ask who runs the store for that right, or name a bucket in which you have it: bucket=…",
)
_CLOCK = (
    "the clocks of this machine and of {who} differ by more than 15 minutes",
    "set the clock of the one that is wrong: timedatectl set-ntp true",
)

# Code of S3: (fact, fix); `{who}` is the endpoint.
_CODES = {
    "InvalidAccessKeyId": (
        "{who} does not know this access key",
        "check LABKIT_S3_ACCESS_KEY: is it a key of this store?",
    ),
    "SignatureDoesNotMatch": (
        "the secret key is not the one that belongs to this access key at {who}",
        "check LABKIT_S3_SECRET_KEY: is it complete, without spaces?",
    ),
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "ExpiredToken": ("the keys for {who} have expired", "get new ones"),
    "AccessDenied": _NO_RIGHT,
    "AllAccessDisabled": _NO_RIGHT,
    "Forbidden": _NO_RIGHT,
    "403": _NO_RIGHT,
    "NoSuchBucket": (
        "there is no such bucket at {who}",
        'store.bucket("…") makes one, or name one that exists',
    ),
    "BucketAlreadyExists": (
        "a bucket of that name belongs to another user at {who}",
        "name another one: bucket=…",
    ),
    "InvalidBucketName": (
        "that is not a valid name of a bucket",
        "use 3 to 63 lowercase letters, digits and hyphens",
    ),
}


def to_storage_error(
    error: BaseException,
    *,
    attempt: str,
    endpoint: str,
    fix: str | None = None,
    trouble: Callable[[], tuple[str, str] | None] = lambda: None,
) -> StorageError:
    """Return the lab's error for one that s3fs or botocore raised.

    Args:
        attempt: what was being done ("write an object").
        fix: what to do if the store does not answer; default: a hint at the endpoint.
        trouble: asked for (fact, fix) when the store says only that it failed.
    """
    if isinstance(error, StorageError):
        return error
    who, links = without_credentials(endpoint), list(_links(error))
    names = {kind.__name__ for link in links for kind in type(link).__mro__}
    code, hint = code_of(error), fix or "are endpoint and port right, and does the store run there?"
    if code in _CODES:
        fact, way = _CODES[code]
        return StorageError(attempt, fact.format(who=who), way)
    if code in ("InternalError", "500") and (found := trouble()):
        return StorageError(attempt, *found)
    if "SSLError" in names or "SSLCertVerificationError" in names:
        return StorageError(attempt, *_tls(" ".join(map(str, links)), who))
    if names & _NO_KEYS:
        way = "export LABKIT_S3_ACCESS_KEY=… LABKIT_S3_SECRET_KEY=…, on every node of the cluster"
        return StorageError(attempt, f"there are no keys for {who} here", way)
    if "ProxyConnectionError" in names:
        fact = f"the proxy in http_proxy or https_proxy does not reach {who}"
        way = "export no_proxy=… with the store's host, if it needs no proxy; else ask who runs the proxy"
        return StorageError(attempt, fact, way)
    status = [_status(link) for link in links if _status(link)]
    if not code and _speaks_tls(endpoint):
        fact = f"{who} speaks TLS, not plain HTTP"
        return StorageError(attempt, fact, "write https:// instead of http://")
    if names & {"EndpointConnectionError", "ConnectionRefusedError"}:
        return StorageError(attempt, f"nothing listens at {who}", hint)
    if names & _SILENT:
        return StorageError(attempt, f"{who} does not answer in time", hint)
    if names & _BROKEN:
        return StorageError(attempt, f"{who} closed the connection", hint)
    if status and not code:
        fact = f"{who} answers (HTTP status {status[0]}), but not as an S3 store does"
        way = "name the store's S3 endpoint, not its web console (MinIO's are on ports 9000 and 9001)"
        return StorageError(attempt, fact, way)
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return StorageError(attempt, f"{who} says: {said[:200]}", hint)


def hint_for(text: str) -> str | None:
    """What to do about an error text from a worker; None unless the text says that the store is gone."""
    names = {"EndpointConnectionError", *_SILENT, *_BROKEN} - {"TimeoutError"}  # others raise that one, too
    if any(name in text for name in names):
        return (
            "the object store does not answer. storage.start() starts the lab's own again, on the same data; "
            "a run of the same name then goes on from its last checkpoint"
        )
    return None


def code_of(error: BaseException) -> str:
    """S3's code in an exception or in what caused it; "" if there is none."""
    codes = (_response(link).get("Error", {}).get("Code") for link in _links(error))
    return str(next(filter(None, codes), ""))


def _status(error: BaseException) -> int | None:
    return _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode")


def _response(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _links(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _tls(text: str, who: str) -> tuple[str, str]:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        fix = "export AWS_CA_BUNDLE=… with the certificate of the authority that signed it, on every node"
        return f"no authority that this machine trusts signed the certificate of {who}", fix
    return f"{who} speaks plain HTTP, not TLS", "write http:// instead of https://"


def _speaks_tls(endpoint: str) -> bool:
    """Whether the other side of a plain endpoint completes a TLS handshake."""
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
