"""Faults of a store in words: by S3's codes, by what the client raised, never with a password."""

import pytest
from botocore import exceptions as boto

from labkit.storage.explain import explain, hint_for

URL = "http://127.0.0.1:9000"


def refusal(code):
    return boto.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (refusal("InvalidAccessKeyId"), "does not know this access key"),
        (refusal("SignatureDoesNotMatch"), "secret key"),
        (refusal("403"), "no right"),
        (refusal("NoSuchBucket"), "no such bucket"),
        (refusal("Teapot"), "says: An error occurred (Teapot)"),
        (boto.EndpointConnectionError(endpoint_url=URL), "nothing listens"),
        (boto.ConnectTimeoutError(endpoint_url=URL), "does not answer"),
        (boto.ReadTimeoutError(endpoint_url=URL), "does not answer"),
        (boto.ConnectionClosedError(endpoint_url=URL), "closed the connection"),
        (boto.SSLError(endpoint_url=URL, error="[SSL: CERTIFICATE_VERIFY_FAILED]"), "certificate"),
        (boto.NoCredentialsError(), "there are no keys"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_fact_names_the_store_and_the_fix_says_what_to_do(error, fact):
    found, fix = explain(error, "http://user:password@127.0.0.1:9000")
    assert fact in found and "127.0.0.1:9000" in found and fix
    assert "password" not in found + fix


def test_the_code_is_found_in_what_caused_it():
    """s3fs raises an error of the system from the one of botocore."""
    with pytest.raises(PermissionError) as caught:
        raise PermissionError("no") from refusal("SignatureDoesNotMatch")
    assert "secret key" in explain(caught.value, URL)[0]


def test_what_to_do_can_be_said_by_the_caller():
    assert explain(boto.EndpointConnectionError(endpoint_url=URL), URL, "start it")[1] == "start it"


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
