"""Numbers and texts as a reader sees them."""

import pytest

from labkit.display import formatting
from labkit.display.formatting import plural, short_metrics, without_credentials
from tables import evaluated, rows

CASES = r"""
clock
  72.4 => 01:12
  3672 => 1:01:12
  math.nan => 00:00
seconds
  0 => 0 ms
  0.0996 => 0.1 s
  9.96 => 10 s
  119.6 => 2 min 0 s
  8000 => 2 h 13 min
  3599.7 => 1 h 0 min
  math.inf => –
duration
  0.4 => 0.4 s
  59.9 => 60 s
  60 => 01:00
count
  0.4 => 0
  999.6 => 1.0 k
  18_312 => 18.3 k
  999_600 => 1.0 M
  math.nan => –
size
  None => –
  999 => 999 B
  9960 => 10 kB
  217_088 => 217 kB
  4e15 => 4000 TB
number
  -0.0 => 0
  1437 => 1437
  3_960_000 => 3,960,000
  1e9 => 1e+09
  -0.2137 => -0.214
  999.9996 => 1000
  9999.5 => 10,000
  -1234.5 => -1234
  0.00099999 => 0.001
  1.5e7 => 15,000,000
  0.00012345 => 0.000123
  math.nan => nan
  True => True
  "two\nlines" => two lines
short
  "  a \n\t b  " => a b
  "x" * 40 => xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
  "x" * 1_000_000 => xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
"""


@pytest.mark.parametrize("function, value, words", rows(CASES))
def test_as_words(function, value, words):
    assert getattr(formatting, function)(evaluated(value, {})) == words


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
