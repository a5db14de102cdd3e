"""What the errors of TorchDistributor mean: the rank, the one line, and the cures that no test provokes."""

import pytest

from labkit.spark import output as spark_faults


@pytest.mark.parametrize(
    "text, cure",
    [
        ("GPU resources were not configured properly on the driver.", "use_gpu=False"),
        ("ValueError: x", None),
    ],
)
def test_cures(text, cure):
    found = spark_faults.advice(text)
    assert found is None if cure is None else cure in found


def test_the_traceback_of_the_first_rank_is_taken_out_of_torchruns():
    text = "noise\n[rank1]: Traceback\n[rank0]: other\n[rank1]: ValueError: x\nmore noise"
    assert spark_faults.rank_error(text) == (1, "Traceback\nValueError: x")
    assert spark_faults.rank_error("nothing") is None
    # torchrun ends the other ranks when the first one has failed, perhaps while they print.
    text = "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
    assert spark_faults.rank_error(text + "[rank1]: ValueError: bad\n")[0] == 1
    assert spark_faults.rank_error(text)[0] == 0


def test_a_rank_that_was_killed_is_the_cause():
    ended = "  rank      : {} (local_rank: {})\n  exitcode  : -{} (pid: 1)\n"
    text = "[rank0]: Traceback\n[rank0]: Closed\n" + ended.format(0, 0, 15) + ended.format(1, 1, 9)
    assert spark_faults.rank_error(text) == (1, "killed (SIGKILL)")


def test_a_rank_that_failed_before_the_ranks_met():
    text = (
        "Traceback (most recent call last):\n  File a\n    b\nKeyError: 'x'\n"
        "E1121 api.py] failed (exitcode: 1) local_rank: 1\nTraceback (most recent call last):\n  c\nd: e\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1\n"
    )
    rank, traceback = spark_faults.rank_error(text)
    assert rank == 1
    assert traceback.endswith("KeyError: 'x'")
    begun = "Traceback (most recent call last):\n"
    for other in (begun, begun + "  File a\n"):  # torchrun ended rank 0 amid its own traceback
        assert spark_faults.rank_error(other + text) == (rank, traceback)
    # What pyspark prints of a function that it cannot pickle is no rank's.
    assert spark_faults.rank_error(text.partition("E1121")[0]) is None


@pytest.mark.parametrize(
    "text, line",
    [
        (
            "\n An exception\nTraceback (most recent call last):\n  File x\nKeyError: 'a'\n\tat java",
            "KeyError: 'a'",
        ),
        ("org.x.Y: [SPARK-24819]: Barrier execution\n\tat java", "[SPARK-24819]: Barrier execution"),
        ("plain words\nand more", "plain words"),
    ],
)
def test_an_error_in_one_line(text, line):
    assert spark_faults.summary(text) == line
