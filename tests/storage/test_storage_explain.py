"""Faults of a store in words, never with a password: those that test_storage.py does not provoke."""

import pytest
from botocore import exceptions as boto

from labkit.storage.explain import explain, hint_for

URL = "http://127.0.0.1:9000"


def refusal(code):
    return boto.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (refusal("403"), "no right"),
        (refusal("Teapot"), "says: An error occurred (Teapot)"),
        (boto.ConnectTimeoutError(endpoint_url=URL), "does not answer"),
        (boto.ConnectionClosedError(endpoint_url=URL), "closed the connection"),
        (boto.NoCredentialsError(), "there are no keys"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_fact_names_the_store_and_the_fix_says_what_to_do(error, fact):
    found, fix = explain(error, "http://user:password@127.0.0.1:9000")
    assert fact in found and "127.0.0.1:9000" in found and fix
    assert "password" not in found + fix


@pytest.mark.parametrize(
    "text, known",
    [
        ('botocore.exceptions.EndpointConnectionError: Could not connect to "http://127.0.0.1:1/lab"', True),
        ("aiobotocore.httpsession.ReadTimeoutError: Read timeout", True),
        ("TimeoutError: the barrier", False),
        ("ConnectionRefusedError: somewhere else", False),
    ],
)
def test_advice_for_what_a_worker_tells(text, known):
    said = hint_for(text)
    assert (said is not None and "storage.start()" in said) == known
