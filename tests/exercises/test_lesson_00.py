"""The exercises of lesson 00: what is said of a mistake."""

import numpy as np

from records import record
from verdicts import checks

NEARLY_ALL = record(name="00-slow-data", rows_per_second=1500.0, waiting_share=0.95)
NOT_ALL = record(name="00-slow-data", rows_per_second=1566.0, waiting_share=0.9164)
ALL = record(name="00-slow-data", rows_per_second=1566.0, waiting_share=0.997)  # shown as 1


ANSWERS = {
    "00-1": [
        ([22.453125, 29, 1437], "no part of a step"),
        ([22, 29, 1437], "left out"),
        ([23, 64, 1437], "a multiple of 64"),
        ([3, 64, 128], "not it"),
    ],
    "00-3": [
        # digits copied from the output will do
        ([np.float64(29_950), NEARLY_ALL], "solved"),
        ([1500, NEARLY_ALL], "WITH the waiting"),
        ([75, NEARLY_ALL], "less than it had"),
        ([1579, NEARLY_ALL], "not by that in which"),
        ([1566 / (1 - 0.92), NOT_ALL], "the panel rounds the share"),
        ([1_000_000, ALL], "not it"),
    ],
}


test_what_a_check_says = checks(ANSWERS)
