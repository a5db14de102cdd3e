"""Faults of a store in words, never with a password: those that test_storage.py does not provoke."""

import pytest
from botocore import exceptions as boto

from labkit.storage import Store, hint_for
from labkit.storage.explain import explain

URL = "http://127.0.0.1:9000"


def refusal(code):
    return boto.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "fact", "fix"),
    [
        (refusal("403"), "refused it: 403", "the right"),
        (refusal("Teapot"), "An error occurred (Teapot)", "error code Teapot"),
        (boto.ConnectTimeoutError(endpoint_url=URL), "does not answer", "does the store run"),
        (boto.ConnectionClosedError(endpoint_url=URL), "does not answer", "does the store run"),
        (boto.NoCredentialsError(), "NoCredentialsError", "LABKIT_S3_ACCESS_KEY"),
        (boto.ProxyConnectionError(proxy_url="http://me:password@proxy"), "ProxyConnection", "no_proxy"),
        (OSError("http://me:password@proxy is away"), "OSError", "does the store run"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_fact_names_the_store_and_the_fix_says_what_to_do(error, fact, fix):
    found, what = explain(error, "http://user:password@127.0.0.1:9000")
    assert fact in found and "127.0.0.1:9000" in found and fix in what
    assert "password" not in found + what


@pytest.mark.parametrize(
    "text, known",
    [
        ('EndpointConnectionError: Could not connect to "http://127.0.0.1:9000/lab"', True),
        ('ReadTimeoutError: Read timeout on endpoint URL: "http://127.0.0.1:9000/lab/a"', True),
        ('ReadTimeoutError: HTTPSConnectionPool(host="huggingface.co", port=443): Read timed out.', False),
        ("aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected", False),
        ("TimeoutError: the barrier", False),
        ("ValueError: http://127.0.0.1:9000 is odd", False),
    ],
)
def test_only_a_store_that_is_named_is_blamed(text, known):
    store = Store(URL, None, "lab")  # of this process
    said = hint_for(text)
    assert (said is not None and "storage.start()" in said) == known
    del store
