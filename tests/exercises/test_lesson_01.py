"""The exercises of lesson 01: what is right, and what a likely mistake is told."""

from types import SimpleNamespace

import numpy
import pytest

from labkit.exercises import check


class ObjectRef:
    """As much of Ray's class as a check sees: its name, and an id."""

    def __init__(self, number):
        self.number = number

    def hex(self):
        return f"{self.number:x}"


LABELS = numpy.array([*range(10), 3, 3])
COUNTS = numpy.bincount(LABELS)
REFERENCES = [ObjectRef(1), ObjectRef(2), ObjectRef(3)]


@pytest.mark.parametrize(
    "parts, total, said",
    [
        (REFERENCES, COUNTS, "solved"),
        (tuple(REFERENCES), COUNTS.tolist(), "solved"),
        ([COUNTS, COUNTS, COUNTS], COUNTS, "before you started the next"),
        (REFERENCES[:2], COUNTS, "has 2 references"),
        ([REFERENCES[0]] * 3, COUNTS, "more than once"),
        (REFERENCES[0], COUNTS, "a list of three references"),
        (REFERENCES, COUNTS - (numpy.arange(10) == 3), "add up to 11, and there are 12"),
        (REFERENCES, COUNTS[::-1], "values differ"),
        (REFERENCES, 12, "shape"),
        (..., ..., "not attempted"),
    ],
)
def test_counts_in_parallel(parts, total, said):
    assert said in repr(check("01-1", parts, total, LABELS))


def nodes(*cpus):
    return [SimpleNamespace(cpus=float(count)) for count in cpus]


@pytest.mark.parametrize(
    "answer, cpus, said",
    [
        (1, (3, 2, 2), "solved"),
        (2, (3, 2, 2), "of two nodes"),
        (3, (3, 2, 2), "not every node"),
        (7, (3, 2, 2), "not it"),
        (5, (16,), "solved"),
        (4, (6, 6), "solved"),
    ],
)
def test_big_tasks(answer, cpus, said):
    assert said in repr(check("01-2", answer, nodes(*cpus)))


@pytest.mark.parametrize(
    "answer, said", [(1, "solved"), (6, "was killed"), (5, "before it returns"), (7, "not it")]
)
def test_after_a_restart(answer, said):
    assert said in repr(check("01-3", answer))


@pytest.mark.parametrize(
    "status, said", [(200, "solved"), (401, "the request had no token"), (403, "not that of this cluster")]
)
def test_status(status, said):
    assert said in repr(check("01-4", status))


@pytest.mark.parametrize("answer", ["Bearer f00dfeed", b"f00dfeed", ["f00dfeed"]])
def test_no_verdict_repeats_a_token(answer):
    verdict = check("01-4", answer)
    assert verdict.state == "not yet"
    assert "f00d" not in repr(verdict) and "f00d" not in verdict._repr_html_()
