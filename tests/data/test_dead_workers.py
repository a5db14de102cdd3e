"""Worker processes of Ray Data that end by themselves: it starts their tasks again, without a word."""

import os
import signal

import pytest
import ray

from labkit.cluster import ends
from labkit.data import DataPanel
from labkit.errors import RunFailed
from labkit.panel.reporters import NullReporter
from labs import interrupt_when, shown

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/cluster/", "labkit/data.py"), pytest.mark.fault]
LAB = {}


def ends_with_3(batch):
    os._exit(3)


def crashes(batch):
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    "function, words",
    [(ends_with_3, "it exited with status 3"), (crashes, "signal 11 (SIGSEGV) ended it")],
)
def test_a_process_that_ends_again_and_again_is_explained_while_ray_data_repeats_it(
    lab, function, words, capfd
):
    panel = DataPanel("again", reporter=NullReporter())
    printed = []
    before = ends.exit_codes().keys()

    def has_ended_twice():
        """Read what Ray printed of the first end: of the last one, it may print after the panel is closed."""
        codes = [code for pid, code in ends.exit_codes().items() if pid not in before and code not in (0, 1)]
        if panel.state.death is None or len(codes) < 2:
            return False
        printed.extend(capfd.readouterr())
        return True

    interrupt_when(has_ended_twice)
    with pytest.raises(BaseException, match="stopped by you"), panel:
        capfd.readouterr()  # of the test before
        ray.data.range(8).map_batches(function).materialize()
    note = f"a worker process is gone: {words}. Ray Data starts its tasks again, as often as that happens"
    assert note in shown(panel).notes
    assert "A worker died" not in "".join(printed)  # in many lines, with guesses


def test_a_join_without_polars_does_not_send_the_reader_to_a_line_that_is_not_there(lab):
    left, right = ray.data.range(8), ray.data.range(8)
    with pytest.raises(RunFailed) as failed, DataPanel("join"):
        left.join(right, join_type="inner", num_partitions=2, on=("id",)).materialize()
    assert "polars" in failed.value.fact and "install it" in failed.value.fix
    assert "panel above" not in failed.value.fix
