"""Numbers and texts as a reader sees them."""

import math

import pytest

from labkit.display.formatting import (
    clock,
    count,
    duration,
    number,
    plural,
    seconds,
    short,
    short_metrics,
    size,
    without_credentials,
)

CASES = [
    (clock, 72.4, "01:12"),
    (clock, 3672, "1:01:12"),
    (clock, math.nan, "00:00"),
    (seconds, 0, "0 ms"),
    (seconds, 0.0996, "0.1 s"),
    (seconds, 9.96, "10 s"),
    (seconds, 119.6, "2 min 0 s"),
    (seconds, 8000, "2 h 13 min"),
    (seconds, 3599.7, "1 h 0 min"),
    (seconds, math.inf, "–"),
    (duration, 0.4, "0.4 s"),
    (duration, 59.9, "60 s"),
    (duration, 60, "01:00"),
    (count, 0.4, "0"),
    (count, 999.6, "1.0 k"),
    (count, 18_312, "18.3 k"),
    (count, 999_600, "1.0 M"),
    (count, math.nan, "–"),
    (size, None, "–"),
    (size, 999, "999 B"),
    (size, 9960, "10 kB"),
    (size, 217_088, "217 kB"),
    (size, 4e15, "4000 TB"),
    (number, -0.0, "0"),
    (number, 1437, "1437"),
    (number, 3_960_000, "3,960,000"),
    (number, 1e9, "1e+09"),
    (number, -0.2137, "-0.214"),
    (number, 999.9996, "1000"),
    (number, 9999.5, "10,000"),
    (number, -1234.5, "-1234"),
    (number, 0.00099999, "0.001"),
    (number, 1.5e7, "15,000,000"),
    (number, 0.00012345, "0.000123"),
    (number, math.nan, "nan"),
    (number, True, "True"),
    (number, "two\nlines", "two lines"),
    (short, "  a \n\t b  ", "a b"),
    (short, "x" * 40, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
    (short, "x" * 1_000_000, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"),
]


@pytest.mark.parametrize(("function", "value", "text"), CASES)
def test_as_words(function, value, text):
    assert function(value) == text


def test_plural_and_metrics():
    assert [plural(n, "epoch") for n in (0, 1, 1437)] == ["0 epochs", "1 epoch", "1,437 epochs"]
    metrics = {"epoch": 3, "loss": 0.2137, "accuracy": 0.95, "a": 1, "b": 2, "c": 3}
    assert short_metrics(metrics) == "loss 0.214 · accuracy 0.950 · a 1 · b 2"


@pytest.mark.parametrize(
    "userinfo",
    ["u:p", "u:p@ss", "u:p@s@s", "AKIA:abc/de+f", "AKIA:a/b/c", "u", "u:", ":p", "u:12", "u:p%40s"],
)
def test_no_part_of_a_password_is_left(userinfo):
    assert without_credentials(f"http://{userinfo}@host:9000/bucket") == "http://host:9000/bucket"


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://host",
        "http://host:9000/a@b",
        "http://host:9000",
        "http://[::1]:9000/a@b",
        "http://host/?mail=a@b",
        "s3://b/k",
    ],
)
def test_an_endpoint_without_credentials_stays(endpoint):
    assert without_credentials(endpoint) == endpoint
    assert without_credentials(f"{endpoint}: refused, mail a@b") == f"{endpoint}: refused, mail a@b"
