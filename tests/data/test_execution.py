"""The state of an execution of Ray Data, and how it is drawn."""

import golden
from labkit.data import DataPanel, ExecutionRun, OperatorState, shown
from labkit.panel.drawing import snapshot
from labkit.settings import Settings


def test_the_panel_shows_what_runs_and_afterwards_what_was(request, tmp_path):
    run = ExecutionRun("02-<demo>")
    read = OperatorState(
        "ReadImage", rows=1200, blocks=6, bytes=900_000, tasks=6, seconds=2.0, cpu_seconds=0.5
    )
    read.memory_peak, read.backpressure_seconds = 700_000, 1.25
    run.executions = [[read, OperatorState("MapBatches(<lambda>)", rows=1000, bytes=100_000)]]
    run.start(now=100.0)
    for number in range(10_000):
        read.memory = number
        run.sample()
    assert len(run.samples) <= 2000 and run.samples[0][1] == 0 and run.memory_peak == 9999
    live = snapshot(run, shown(run, 130.0), 130.0)
    assert live.lines == ()
    run.fail("cell 3, line 2\nValueError: <no>")
    run.end("failed", 140.0)
    over = snapshot(run, shown(run, 140.0), 140.0)
    assert over.lines[-1][1].startswith("failed after ") and "1,000 rows" in over.lines[-1][1]
    golden.compare(request.config, "data", {"afterwards": over.html})
    panel = DataPanel("figure", settings=Settings(home=tmp_path))
    assert panel.plot_memory().axes  # of nothing, too
    panel.state = run
    (axes,) = panel.plot_memory().axes
    assert len(axes.lines[0].get_ydata()) == len(run.samples)
