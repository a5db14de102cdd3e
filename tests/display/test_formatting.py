"""Numbers and texts as a reader sees them."""

import math

import pytest

from labkit.display import formatting
from labkit.display.formatting import UNKNOWN


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "00:00"),
        (0.999, "00:00"),
        (59.99, "00:59"),
        (72.4, "01:12"),
        (3599, "59:59"),
        (3600, "1:00:00"),
        (3672, "1:01:12"),
        (360_000, "100:00:00"),
        (-5, "00:00"),
        (math.nan, "00:00"),
        (math.inf, "00:00"),
    ],
)
def test_clock(value, words):
    assert formatting.clock(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0 ms"),
        (0.034, "34 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (7.23, "7.2 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (84.4, "84 s"),
        (119.4, "119 s"),
        (119.6, "1 min 59 s"),
        (400, "6 min 40 s"),
        (3599.9, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (8000, "2 h 13 min"),
        (-3, "0 ms"),
        (math.nan, UNKNOWN),
        (math.inf, UNKNOWN),
    ],
)
def test_seconds(value, words):
    assert formatting.seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.4, "0"),
        (512, "512"),
        (999.4, "999"),
        (999.6, "1.0 k"),
        (1000, "1.0 k"),
        (18_312, "18.3 k"),
        (99_940, "99.9 k"),
        (99_960, "100 k"),
        (999_400, "999 k"),
        (999_600, "1.0 M"),
        (1_234_567, "1.2 M"),
        (5e9, "5.0 G"),
        (math.nan, UNKNOWN),
        (math.inf, UNKNOWN),
    ],
)
def test_count(value, words):
    assert formatting.count(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, UNKNOWN),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9940, "9.9 kB"),
        (9960, "10 kB"),
        (217_088, "217 kB"),
        (999_700, "1.0 MB"),
        (3.2e9, "3.2 GB"),
        (4e15, "4000 TB"),
        (math.inf, UNKNOWN),
    ],
)
def test_size(value, words):
    assert formatting.size(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (-0.0, "0"),
        (3, "3"),
        (3.0, "3"),
        (999_999, "999999"),
        (1e6, "1e+06"),
        (0.2137, "0.214"),
        (-0.2137, "-0.214"),
        (12.3456, "12.346"),
        (999.9, "999.900"),
        (999.9999, "1e+03"),
        (1234.5, "1.23e+03"),
        (0.00012345, "0.000123"),
        (1e-9, "1e-09"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (10**400, UNKNOWN),
        (True, "True"),
        (None, "None"),
        ("text", "text"),
        ("two\nlines", "two lines"),
        ("x" * 100, "x" * 39 + "…"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_number(value, words):
    assert formatting.number(value) == words


def test_short():
    assert formatting.short("  a \n\t b  ") == "a b"
    assert formatting.short("x" * 40) == "x" * 40
    assert formatting.short("x" * 1_000_000, 10) == "x" * 9 + "…"
    assert formatting.short("") == ""


def test_short_metrics():
    metrics = {"epoch": 3, "loss": 0.2137, "accuracy": 0.95, "a": 1, "b": 2, "c": 3}
    assert formatting.short_metrics(metrics) == "loss 0.214 · accuracy 0.950 · a 1 · b 2"
    assert formatting.short_metrics(metrics, 1) == "loss 0.214"
    assert formatting.short_metrics({}) == ""
    assert len(formatting.short_metrics({"n" * 1000: "v" * 1000})) < 100


def test_duration_and_plural():
    assert [formatting.duration(value) for value in (0.4, 12, 59.9, 60, 3672)] == [
        "0.4 s", "12 s", "60 s", "01:00", "1:01:12",
    ]  # fmt: skip
    assert [formatting.plural(number, "epoch") for number in (0, 1, 2, 1437)] == [
        "0 epochs", "1 epoch", "2 epochs", "1,437 epochs",
    ]  # fmt: skip
