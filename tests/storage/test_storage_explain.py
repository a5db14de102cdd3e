"""Faults of a store in words: by S3's codes, by what the client raised, never with a password."""

import pytest
from botocore import exceptions as boto

from labkit.display.formatting import without_credentials
from labkit.errors import StorageError
from labkit.storage.explain import code_of, hint_for, to_storage_error

URL = "http://127.0.0.1:9000"


def refusal(code):
    return boto.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")


def told(error, endpoint=URL, **options):
    return to_storage_error(error, attempt="write an object", endpoint=endpoint, **options)


@pytest.mark.parametrize(
    ("code", "fact"),
    [
        ("InvalidAccessKeyId", "does not know this access key"),
        ("SignatureDoesNotMatch", "secret key"),
        ("RequestTimeTooSkewed", "clock"),
        ("AccessDenied", "no right"),
        ("403", "no right"),
        ("NoSuchBucket", "no such bucket"),
        ("Teapot", "says: An error occurred (Teapot)"),
    ],
)
def test_codes(code, fact):
    error = told(refusal(code))
    assert type(error) is StorageError and fact in error.fact and URL in str(error)
    assert error.attempt == "write an object" and error.fix


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (boto.EndpointConnectionError(endpoint_url=URL), "nothing listens"),
        (boto.ConnectTimeoutError(endpoint_url=URL), "does not answer"),
        (boto.ReadTimeoutError(endpoint_url=URL), "does not answer"),
        (boto.ConnectionClosedError(endpoint_url=URL), "closed the connection"),
        (boto.SSLError(endpoint_url=URL, error="[SSL: WRONG_VERSION_NUMBER]"), "plain HTTP"),
        (boto.SSLError(endpoint_url=URL, error="[SSL: CERTIFICATE_VERIFY_FAILED]"), "certificate"),
        (boto.SSLError(endpoint_url=URL, error="else"), "plain HTTP"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_nobody_answers(error, fact):
    assert isinstance(told(error), StorageError) and fact in told(error).fact


def test_no_keys():
    error = told(boto.NoCredentialsError())
    assert isinstance(error, StorageError) and "LABKIT_S3_ACCESS_KEY" in error.fix


def test_the_code_is_found_in_what_caused_it():
    """s3fs raises an error of the system from the one of botocore."""
    try:
        try:
            raise refusal("SignatureDoesNotMatch")
        except boto.ClientError as cause:
            raise PermissionError("no") from cause
    except PermissionError as error:
        assert code_of(error) == "SignatureDoesNotMatch"
        assert "secret key" in told(error).fact
    assert code_of(ValueError()) == ""


def test_the_labs_own_errors_stay_as_they_are():
    error = StorageError("a", "b", "c")
    assert told(error) is error


def test_no_password_of_an_endpoint_is_shown():
    endpoint = "http://user:password@host:9000"
    assert without_credentials(endpoint) == "http://host:9000"
    for error in (refusal("AccessDenied"), boto.EndpointConnectionError(endpoint_url=endpoint)):
        assert "password" not in str(told(error, endpoint))


def test_what_to_do_can_be_said_by_the_caller():
    assert told(boto.EndpointConnectionError(endpoint_url=URL), fix="start it").fix == "start it"


@pytest.mark.parametrize(
    "text, known",
    [
        ('botocore.exceptions.EndpointConnectionError: Could not connect to "http://127.0.0.1:1/lab"', True),
        ("aiobotocore.httpsession.ReadTimeoutError: Read timeout", True),
        ("TimeoutError: the barrier", False),
        ("ValueError: bad row", False),
    ],
)
def test_advice_for_what_a_worker_tells(text, known):
    said = hint_for(text)
    assert (said is not None and "storage.start()" in said) == known
