"""A kernel that reads from the store: it is interrupted, reads again, and ends in time."""

import pytest

import labs
from kernels import kernel

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/storage/"), pytest.mark.fault]

SETUP = """
import time
import pyarrow.parquet
import ray.data
from course import datasets
from labkit.local import cluster, storage
from labkit.data import DataPanel

lab, store = cluster.start(), storage.start()
rows = datasets.load("digits").to_arrow()
for part in range(23):
    path = f"lab/shards/{part}.parquet"
    pyarrow.parquet.write_table(rows.slice(64 * part, 64), path, filesystem=store.filesystem)
ray.data.DataContext.get_current().use_datasource_v2 = False
pause = 0.2

def slow(batch):
    time.sleep(pause)
    return batch
"""
# One cell, run again, unchanged, after the interrupt.
READ = """
with DataPanel("read") as panel:
    data = ray.data.read_parquet("lab/shards", filesystem=store.filesystem, override_num_blocks=24)
    for batch in data.map_batches(slow, batch_size=8).iter_batches(batch_size=64):
        print("a batch came")
print("read", panel.state.rows, "rows")
"""


def test_an_interrupted_reading_ends_in_one_line_and_the_same_cell_then_succeeds():
    with labs.home() as home, kernel(LABKIT_PANEL="widgets", LABKIT_HOME=str(home)) as notebook:
        done = notebook.run(SETUP)
        assert done.error is None, done
        cell = notebook.wait(notebook.begin(READ), until="a batch came")
        assert not cell.done, cell
        notebook.interrupt()
        notebook.wait(cell)
        assert len(cell.error.splitlines()) == 1 and "stopped by you" in cell.error, cell.error
        notebook.run("pause = 0.02")
        again = notebook.run(READ)
        assert again.error is None and "read 1437 rows" in again.text, again
        assert "streaming_executor" not in again.text and "Traceback" not in again.text
        assert notebook.shut_down() == 0  # no thread of the store's client holds it
