"""From an exception of s3fs or botocore to the fact and the fix of the lab's error.

Exceptions are recognized by their names and S3's codes, so that nothing has to be imported for it.
"""

from collections.abc import Iterator

from labkit.display.formatting import without_credentials

_GONE = {
    "EndpointConnectionError": "nothing listens at {who}",
    "ConnectionRefusedError": "nothing listens at {who}",
    **dict.fromkeys(
        ("ConnectTimeoutError", "ReadTimeoutError", "FSTimeoutError"), "{who} does not answer in time"
    ),
    **dict.fromkeys(("ConnectionClosedError", "ServerDisconnectedError"), "{who} closed the connection"),
}
_NO_RIGHT = (
    "{who} knows this key, but the key has no right to do that",
    "ask who runs the store for that right, or name a bucket in which you have it: bucket=…",
)
_NO_KEYS = (
    "there are no keys for {who} here",
    "export LABKIT_S3_ACCESS_KEY=… LABKIT_S3_SECRET_KEY=…, on every node of the cluster",
)
# S3's code or the exception's name: (fact, fix); `{who}` is the endpoint.
_KNOWN = {
    "InvalidAccessKeyId": (
        "{who} does not know this access key",
        "check LABKIT_S3_ACCESS_KEY: is it a key of this store?",
    ),
    "SignatureDoesNotMatch": (
        "the secret key is not the one that belongs to this access key at {who}",
        "check LABKIT_S3_SECRET_KEY: is it complete, without spaces?",
    ),
    "RequestTimeTooSkewed": (
        "the clocks of this machine and of {who} differ by more than 15 minutes",
        "set the clock of the one that is wrong: timedatectl set-ntp true",
    ),
    "AccessDenied": _NO_RIGHT,
    "403": _NO_RIGHT,
    "NoSuchBucket": (
        "there is no such bucket at {who}",
        'store.bucket("…") makes one, or name one that exists',
    ),
    "NoCredentialsError": _NO_KEYS,
    "PartialCredentialsError": _NO_KEYS,
    "ProxyConnectionError": (
        "the proxy in http_proxy or https_proxy does not reach {who}",
        "export no_proxy=… with the store's host, if it needs no proxy",
    ),
    "SSLError": (
        "{who} does not speak TLS, or no authority that this machine trusts signed its certificate",
        "write http:// instead of https://, or export AWS_CA_BUNDLE=… with that authority's certificate",
    ),
}


def explain(error: BaseException, endpoint: str, again: str | None = None) -> tuple[str, str]:
    """Return (fact, fix) for an error that s3fs or botocore raised.

    Args:
        again: what to do if the store does not answer; default: a hint at the endpoint.
    """
    links = list(_links(error))
    code, names = code_of(error), [kind.__name__ for link in links for kind in type(link).__mro__]
    who, again = (
        without_credentials(endpoint),
        again or "are endpoint and port right, and does the store run there?",
    )
    for name in (code, *names):
        if name in _KNOWN:
            fact, fix = _KNOWN[name]
            return fact.format(who=who), fix
        if name in _GONE:
            return _GONE[name].format(who=who), again
    if "An error occurred ()" in str(error):
        fact = f"{who} answers, but not as an S3 store does"
        return fact, "name the store's S3 endpoint, not its web console (MinIO's are on ports 9000 and 9001)"
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{who} says: {said[:200]}", f"look up S3's error code {code}" if code else again


def hint_for(text: str) -> str | None:
    """What to do about an error text from a worker; None unless the text says that the store is gone."""
    if any(name in text for name in _GONE if name != "ConnectionRefusedError"):  # others raise that one, too
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
