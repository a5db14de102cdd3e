"""The exercises of lesson 00: what is said of a mistake."""

import numpy
import torch

from labkit.exercises import check
from labkit.runs.record import RunRecord
from verdicts import verdicts

LABELS = torch.tensor([*range(10), 0, 0, 1])
ANSWERS = torch.tensor([*range(10), 1, 0, 1])  # of three zeros, one is called a 1
RIGHT = [2 / 3] + [1.0] * 9


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


def test_a_better_network_is_measured_and_not_believed():
    images = torch.eye(10)[LABELS]
    test = type("Test", (), {"name": "digits", "labels": LABELS.numpy(), "__len__": lambda self: 13})()
    model = torch.nn.Identity()
    assert check("00-4", model, images, test)
    worse = torch.nn.Linear(10, 10)
    torch.nn.init.zeros_(worse.weight), torch.nn.init.zeros_(worse.bias)
    verdict = check("00-4", worse, images, test)
    assert "0.231" in verdict.message and "0.95" in verdict.message  # three zeros of thirteen images
    assert "Module is expected" in check("00-4", 0.99, images, test).message


SAID = {
    "00-2": [
        (shares, ANSWERS, LABELS, said)
        for shares, said in (
            (torch.tensor(RIGHT), "solved"),
            ([torch.tensor(share) for share in RIGHT], "solved"),
            ([1.0, 2 / 3] + [1.0] * 8, "CALLED"),
            ([1 - share for share in RIGHT], "WRONG"),
            ([100 * share for share in RIGHT], "no share is above 1"),
            ([1.0] * 10, "1 of its 10 values differ"),
        )
    ],
    "00-1": [
        (23, 29, 1437, "solved"),
        (22.453125, 29, 1437, "no part of a step"),
        (22, 29, 1437, "left out"),
        (23, 64, 1437, "64 divides"),
        (3, 64, 128, "not it"),
    ],
}


@verdicts(SAID)
def test_what_a_check_says(id, answers, said):
    assert said in repr(check(id, *answers))
