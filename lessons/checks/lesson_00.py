"""Lesson 00: steps of an epoch, waiting for data."""

import math
from typing import Any

from course.exercises.answers import close_to, expect_type
from course.exercises.registry import Lesson

LESSON = Lesson("00", "Start here")
_BATCH = 64


@LESSON.exercise(
    "00-1 · The steps of an epoch",
    "In groups of 64, what becomes of the images that are left over?",
    "They are a batch, too, a smaller one. So the number of steps is rounded up.",
    "`math.ceil(len(digits) / 64)` steps. All batches have 64 images, except the last.",
)
def _steps(steps: Any, last: Any, rows: int) -> None:
    expected = math.ceil(rows / _BATCH)
    near = {rows / _BATCH: "there is no part of a step", rows // _BATCH: "some images would be left out"}
    close_to(steps, expected, mistakes=near, what="the number of steps")
    rest = rows - _BATCH * (expected - 1)
    near = {_BATCH: "that is a full batch, so the number of images would be a multiple of 64"}
    close_to(last, rest, mistakes=near, what="the last batch")


@LESSON.exercise(
    "00-3 · What would fast data bring?",
    "In which share of its time did the run work? It did all its rows in that share.",
    "Had it waited for 0.75 of the time, it would have worked for a quarter of it.",
    "Divide the rate by the share of the time in which it worked, `1 - record.waiting_share`.",
)
def _without_waiting(rate: Any, record: Any) -> None:
    expect_type(record, "RunRecord", what="the record")
    measured, waiting = record.rows_per_second, record.waiting_share
    near = {
        measured: "that is what it reached WITH the waiting",
        measured * (1 - waiting): "that is less than it had, and without waiting it gets more done",
        measured * waiting: "that is less than it had, and without waiting it gets more done",
        measured * (1 + waiting): "that would be the rate with a little less waiting, not with none",
        measured / waiting: "you divided by the share in which it waited, not by that in which it worked",
    }
    if (rounded := round(waiting, 2)) < 1:
        near[measured / (1 - rounded)] = "the panel rounds the share; the record has more digits"
    # The digits that a reader copied from the cell above are enough.
    close_to(rate, measured / (1 - waiting), rel=0.03, mistakes=near, what="your rate")
