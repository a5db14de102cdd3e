"""A run that validates alongside its training, in a real browser: live, and when it is opened again."""

import pytest

from jupyterlab import ARTEFACTS, NotebookPage, browser, served, write_notebook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/panel/", "labkit/worker/", "labkit/display/"),
    pytest.mark.browser,
]

SETUP = """
import os, tempfile, time
import ray.train
from ray.train import CheckpointUploadMode, RunConfig, ScalingConfig, ValidationConfig, ValidationTaskConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from labkit.local import cluster
from labkit.worker.hooks import current
from labkit.train.panel import TrainPanel

lab = cluster.start()

def loop(config):
    for epoch, how in enumerate(["well", "raise", "hang", "well"]):
        current().begin_epoch(20)
        for step in range(20):
            time.sleep(0.1)
            current().step(8, loss=1 / (1 + epoch + step / 20))
        ray.train.report(
            {"epoch": epoch, "loss": 1 / (2 + epoch)},
            checkpoint=ray.train.Checkpoint.from_directory(tempfile.mkdtemp()),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            validation=ValidationTaskConfig(fn_kwargs={"how": how}, timeout_s=20 if how == "hang" else 300),
        )

def validate(checkpoint, how):
    time.sleep(1000 if how == "hang" else 1.5)
    if how == "raise":
        raise ValueError("no <b>rows</b>")
    return {"accuracy": 0.875}
"""
FIT = """
panel = TrainPanel("alongside", epochs=4)
trainer = DataParallelTrainer(
    loop,
    scaling_config=ScalingConfig(num_workers=1),
    validation_config=ValidationConfig(validate),
    run_config=RunConfig(name=panel.run_id, storage_path=os.environ["LABKIT_HOME"] + "/runs"),
)
with panel.watch(trainer):
    trainer.fit()
"""

# The lines of phases that continue at the figure's left edge.
BEYOND = """card => [...card.querySelectorAll('.lk-steps')].filter(one => one.scrollWidth > one.clientWidth)
    .map(one => one.innerText)"""


def test_the_time_axis_is_drawn_live_and_stays(home, chromium, tmp_path):
    write_notebook(tmp_path / "beside.ipynb", SETUP, FIT)
    seen: set[str] = set()
    drawn: list[int] = []
    beyond: set[str] = set()
    with served(tmp_path) as address, browser(chromium) as page:
        opened = NotebookPage(page, address.format("beside.ipynb"))
        opened.run(0)

        def watch():
            card = page.locator(".lk-card").first
            if not card.locator(".lk-pad").count():
                return
            for words in card.locator("td .lk-wait, td .lk-bad, td .lk-ok").all_inner_texts():
                if words.startswith("● validating") and words not in seen:
                    card.scroll_into_view_if_needed()
                    page.screenshot(path=ARTEFACTS / "beside-running.png")
                seen.add(words)
            drawn.append(card.locator(".lk-pad rect").count())
            beyond.update(card.evaluate(BEYOND))

        cell = opened.run(1, meanwhile=watch)
        # Several moments of a validation that ran, and the growing picture.
        assert len([words for words in seen if words.startswith("● validating")]) >= 3, seen
        assert any(words.startswith("○ waits") for words in seen), seen
        assert max(drawn) > drawn[0], drawn
        assert not beyond, beyond
        assert "finished" in cell.inner_text()
        opened.save()
        opened.shut_down()
        page.goto("about:blank")
        again = NotebookPage(page, address.format("beside.ipynb"))
        for summary in again.summaries(1, "beside"):
            shown = summary.inner_text()
            for expected in (
                "4 checkpoints · 2 validated · 1 validation failed · 1 timed out",
                "✓ accuracy 0.875",
                "✕ validation failed: ValueError: no <b>rows</b>",
                "✕ timed out after",
            ):
                assert expected in shown, (expected, shown)
            rows = summary.locator(".lk-pad text").all_text_contents()
            assert {"training", "validation"} <= set(rows), rows
            assert summary.locator(".lk-pad rect").count() == 8
