"""Numbers and texts as a reader sees them."""

import math

import pytest

from labkit.display import formatting
from labkit.display.formatting import UNKNOWN, clock, count, duration, number, plural, seconds, short, size

NAN, INF = math.nan, math.inf
CASES = {
    clock: [(0.999, "00:00"), (72.4, "01:12"), (3599, "59:59"), (3672, "1:01:12"), (NAN, "00:00")],
    seconds: [
        *[(0, "0 ms"), (0.0994, "99 ms"), (0.0996, "0.1 s"), (9.94, "9.9 s"), (9.96, "10 s")],
        *[
            (119.4, "119 s"),
            (119.6, "1 min 59 s"),
            (3599.9, "59 min 59 s"),
            (3600, "1 h 0 min"),
            (8000, "2 h 13 min"),
        ],
        *[(8000, "2 h 13 min"), (-3, "0 ms"), (NAN, UNKNOWN), (INF, UNKNOWN)],
    ],
    duration: [(0.4, "0.4 s"), (12, "12 s"), (59.9, "60 s"), (60, "01:00"), (3672, "1:01:12")],
    count: [
        *[(0.4, "0"), (999.4, "999"), (999.6, "1.0 k"), (18_312, "18.3 k"), (99_960, "100 k")],
        *[(999_600, "1.0 M"), (5e9, "5.0 G"), (NAN, UNKNOWN)],
    ],
    size: [
        *[(None, UNKNOWN), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9940, "9.9 kB"), (9960, "10 kB")],
        *[(217_088, "217 kB"), (999_700, "1.0 MB"), (3.2e9, "3.2 GB"), (4e15, "4000 TB"), (INF, UNKNOWN)],
    ],
    number: [
        *[(-0.0, "0"), (3.0, "3"), (1437, "1437"), (3_960_000, "3,960,000"), (-4e6, "-4,000,000")],
        *[(1e9, "1e+09"), (-0.2137, "-0.214"), (12.3456, "12.346")],
        *[(999.9999, "1e+03"), (1234.5, "1.23e+03"), (0.00012345, "0.000123"), (NAN, "nan"), (-INF, "-inf")],
        *[(True, "True"), (None, "None"), ("two\nlines", "two lines"), ("x" * 100, "x" * 39 + "…")],
    ],
    short: [("  a \n\t b  ", "a b"), ("x" * 40, "x" * 40), ("x" * 1_000_000, "x" * 39 + "…"), ("", "")],
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_as_words(function):
    assert [function(value) for value, _ in CASES[function]] == [words for _, words in CASES[function]]


def test_short_metrics():
    metrics = {"epoch": 3, "loss": 0.2137, "accuracy": 0.95, "a": 1, "b": 2, "c": 3}
    assert formatting.short_metrics(metrics) == "loss 0.214 · accuracy 0.950 · a 1 · b 2"
    assert formatting.short_metrics(metrics, 1) == "loss 0.214"
    assert len(formatting.short_metrics({"n" * 1000: "v" * 1000})) < 100


def test_plural():
    assert [plural(n, "epoch") for n in (0, 1, 1437)] == ["0 epochs", "1 epoch", "1,437 epochs"]
