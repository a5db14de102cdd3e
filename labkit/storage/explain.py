"""What went wrong at an object store, in words: from an exception of s3fs to the fact and the fix.

Exceptions are told by their names and codes, so that nothing of S3 has to be imported for it.
"""

from collections.abc import Callable, Iterator

from labkit.display.formatting import without_credentials
from labkit.errors import StorageDenied, StorageError, StorageUnreachable

_SILENT = {"ConnectTimeoutError", "ReadTimeoutError", "FSTimeoutError", "TimeoutError"}
_BROKEN = {"ConnectionClosedError", "ServerDisconnectedError", "ClientPayloadError", "IncompleteRead"}
_NO_KEYS = {"NoCredentialsError", "PartialCredentialsError"}

# Code of S3: (class, fact, fix); `{who}` is the endpoint.
_CODES = {
    "InvalidAccessKeyId": (
        StorageDenied,
        "{who} does not know this access key",
        "look at LABKIT_S3_ACCESS_KEY: is it a key of this store?",
    ),
    "SignatureDoesNotMatch": (
        StorageDenied,
        "the secret key is not the one that belongs to this access key at {who}",
        "look at LABKIT_S3_SECRET_KEY: a part of it may be missing, or a space too much",
    ),
    "RequestTimeTooSkewed": (
        StorageDenied,
        "the clock of this machine and that of {who} differ by more than 15 minutes",
        "set the clock of the one that is wrong: timedatectl set-ntp true",
    ),
    "AccessDenied": (
        StorageDenied,
        "{who} knows this key, and it has no right to do that",
        "ask who runs the store for that right, or name a bucket in which you have it: bucket=…",
    ),
    "NoSuchBucket": (
        StorageError,
        "there is no such bucket at {who}",
        'store.bucket("…") makes one, or name one that is there',
    ),
    "BucketAlreadyExists": (
        StorageDenied,
        "a bucket of that name belongs to somebody else at {who}",
        "name another one: bucket=…",
    ),
    "InvalidBucketName": (
        StorageError,
        "that is no name of a bucket",
        "take 3 to 63 small letters, digits and hyphens",
    ),
}
_CODES["ExpiredToken"] = (StorageDenied, "the keys for {who} have expired", "get new ones")
_CODES["403"] = _CODES["Forbidden"] = _CODES["AllAccessDisabled"] = _CODES["AccessDenied"]
_CODES["RequestExpired"] = _CODES["RequestTimeTooSkewed"]


def explain(
    error: BaseException,
    *,
    attempt: str,
    endpoint: str,
    fix: str | None = None,
    trouble: Callable[[], tuple[str, str] | None] = lambda: None,
) -> StorageError:
    """The lab's error for one that s3fs or botocore raised.

    Args:
        attempt: what was being done ("write an object").
        fix: what to do if the store does not answer; default: a hint at the endpoint.
        trouble: asked for (fact, fix) when the store says no more than that it failed.
    """
    if isinstance(error, StorageError):
        return error
    who = without_credentials(endpoint)
    names = {kind.__name__ for link in _links(error) for kind in type(link).__mro__}
    text = " ".join(str(link) for link in _links(error))
    if (code := code_of(error)) in _CODES:
        kind, fact, way = _CODES[code]
        return kind(attempt, fact.format(who=who), way)
    if code in ("InternalError", "500") and (found := trouble()):
        return StorageError(attempt, *found)
    if "SSLError" in names or "SSLCertVerificationError" in names:
        return StorageUnreachable(attempt, *_tls(text, endpoint, who))
    if "ProxyConnectionError" in names:
        fact = f"the proxy in http_proxy or https_proxy does not reach {who}"
        way = "export no_proxy=… with the store's host, if it needs no proxy; else ask who runs the proxy"
        return StorageUnreachable(attempt, fact, way)
    hint = fix or "is the endpoint right, and the store running? For the lab's own: storage.start()"
    if "EndpointConnectionError" in names or "ConnectionRefusedError" in names:
        return StorageUnreachable(attempt, f"nobody listens at {who}", hint)
    if names & _NO_KEYS:
        fact = f"no keys for {who} are set here"
        way = "export LABKIT_S3_ACCESS_KEY=… LABKIT_S3_SECRET_KEY=…, on every node of the cluster"
        return StorageDenied(attempt, fact, way)
    if names & _SILENT:
        return StorageUnreachable(attempt, f"{who} does not answer in time", hint)
    if names & _BROKEN:
        return StorageUnreachable(attempt, f"{who} broke the connection off", hint)
    if (status := _status_without_code(error)) is not None:
        fact = f"{who} answers (HTTP status {status}), and not as an S3 store does"
        way = "name the store's S3 endpoint, and not its web console (MinIO's are on port 9000 and on 9001)"
        return StorageError(attempt, fact, way)
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return StorageError(attempt, f"{who} says: {said[:200]}", hint)


def advice(text: str) -> str | None:
    """What to do about an error that a worker tells in words; None if it is not of a store that is gone."""
    names = {"EndpointConnectionError", *_SILENT, *_BROKEN} - {"TimeoutError"}  # that may be anybody's
    if any(name in text for name in names):
        return (
            "the object store does not answer. storage.start() starts the lab's own again, on the same data; "
            "a run of the same name then goes on from its last checkpoint"
        )
    return None


def code_of(error: BaseException) -> str:
    """S3's code in an exception or in what caused it; "" if there is none."""
    for link in _links(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict) and (code := response.get("Error", {}).get("Code")):
            return str(code)
    return ""


def _status_without_code(error: BaseException) -> int | None:
    """The HTTP status of an answer that refuses and has no S3 error in it."""
    for link in _links(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict) and not response.get("Error", {}).get("Code"):
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return None


def _tls(text: str, endpoint: str, who: str) -> tuple[str, str]:
    if "WRONG_VERSION_NUMBER" in text or "UNKNOWN_PROTOCOL" in text or "record layer" in text:
        return f"{who} speaks plain HTTP, and not TLS", "write http:// in place of https://"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        fix = "export AWS_CA_BUNDLE=… with the certificate of who signed it, on every node"
        return f"nobody that this machine trusts signed the certificate of {who}", fix
    return f"no TLS connection came about with {who}", "is it http:// in place of https://?"


def _links(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
