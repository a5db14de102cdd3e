"""What an error of s3fs or botocore means, by its name and S3's code: nothing has to be imported for that."""

from typing import Any
from urllib.parse import urlsplit

from labkit.display.formatting import without_credentials

endpoints: set[str] = set()  # of the stores that this process has used, for `hint_for`
_SILENT = {  # exceptions of a store that is gone or does not answer
    "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "FSTimeoutError",
    "ConnectionClosedError", "ServerDisconnectedError", "ConnectionRefusedError",
}  # fmt: skip
_KEYS = "check LABKIT_S3_ACCESS_KEY and LABKIT_S3_SECRET_KEY on every node: are they of this store?"
_RIGHT = "ask who runs the store for the right to do that, or name another bucket: bucket=…"
_WAY = "is it http:// or https://? Own certificate: export AWS_CA_BUNDLE=…; no proxy: export no_proxy=HOST"
_FIXES = {
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "NoCredentialsError"), _KEYS),
    **dict.fromkeys(("AccessDenied", "403", "BucketAlreadyExists"), _RIGHT),
    **dict.fromkeys(("ProxyConnectionError", "SSLError"), _WAY),
    "NoSuchBucket": 'store.bucket("…") makes one, or name one that exists',
    "RequestTimeTooSkewed": "set the clock of this machine or of the store: timedatectl set-ntp true",
}


def explain(error: BaseException, endpoint: str, again: str) -> tuple[str, str]:
    """Return (fact, fix); `again` is the fix if the store does not answer."""
    store, code = without_credentials(endpoint), code_of(error)
    for name in (code, *(kind.__name__ for link in _chain(error) for kind in type(link).__mro__)):
        if name in _FIXES:
            return f"{store} refused it: {name}", _FIXES[name]
        if name in _SILENT:
            return f"{store} does not answer: {name}", again
    said = without_credentials(f"{code or type(error).__name__}: {error}")
    return f"{store}: {said[:200]}", again


def hint_for(text: str) -> str | None:
    """What to do about an error text from a worker; None unless a store of this process did not answer."""
    silent = any(name in text for name in _SILENT)  # these are names of urllib3 and aiohttp, too
    if not silent or not any(urlsplit(endpoint).netloc in text for endpoint in endpoints):
        return None
    return (
        "the object store does not answer. storage.start() starts the lab's own again, on the same data; "
        "a run of the same name then goes on from its last checkpoint"
    )


def code_of(error: BaseException) -> str:
    """S3's code in an exception or in what caused it; "" if there is none."""
    responses: list[Any] = [getattr(link, "response", None) for link in _chain(error)]
    codes = [response.get("Error", {}).get("Code") for response in responses if isinstance(response, dict)]
    return str(next(filter(None, codes), ""))


def _chain(error: BaseException | None) -> list[BaseException]:
    return [] if error is None else [error, *_chain(error.__cause__ or error.__context__)]
