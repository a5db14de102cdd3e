"""The exercises of lesson 00: what is said of a mistake."""

import dataclasses

import numpy

from labkit.exercises import check
from labkit.runs.record import RunRecord
from verdicts import verdicts


def test_without_waiting():
    record = RunRecord(
        name="00-slow-data", run_id="a", engine="one process", state="finished",
        started_at="2026-01-31T12:00:00+00:00", rows_per_second=1500.0, waiting_share=0.95,
    )  # fmt: skip
    assert check("00-3", 30_000, record)
    assert check("00-3", numpy.float64(29_950), record), "digits copied from the output will do"
    for rate, said in ((1500, "WITH the waiting"), (75, "less than it had"), (1579, "not by that in which")):
        verdict = check("00-3", rate, record)
        assert said in verdict.message and "30" not in verdict.message.replace(str(rate), "")


def test_a_share_that_the_panel_has_rounded():
    record = RunRecord(
        name="00-slow-data", run_id="a", engine="one process", state="finished",
        started_at="2026-01-31T12:00:00+00:00", rows_per_second=1566.0, waiting_share=0.9164,
    )  # fmt: skip
    assert check("00-3", 1566 / (1 - 0.9164), record)
    assert "the panel rounds the share" in check("00-3", 1566 / (1 - 0.92), record).message
    record = dataclasses.replace(record, waiting_share=0.997)  # rounded to 1
    assert "not it" in check("00-3", 1_000_000, record).message


SAID = {
    "00-1": [
        (23, 29, 1437, "solved"),
        (22.453125, 29, 1437, "no part of a step"),
        (22, 29, 1437, "left out"),
        (23, 64, 1437, "a multiple of 64"),
        (3, 64, 128, "not it"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
