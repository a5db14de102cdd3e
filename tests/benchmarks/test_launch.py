"""One launch: programs that fail, hang or lose a rank; the lines that differ."""

import pytest

from benchmarks._engines import launch
from benchmarks._engines.comparison import run
from benchmarks._engines.launch import ENGINES, Engine
from labkit.errors import RunFailed
from labkit.settings import Settings
from labkit.system import family

PLAIN, TORCHRUN = ENGINES[:2]


@pytest.fixture(scope="module")
def settings(home):
    return Settings(home=home)


def test_a_program_that_fails(settings, tmp_path):
    (tmp_path / "failing.py").write_text("raise SystemExit('no such luck')\n")
    with pytest.raises(RunFailed, match="no such luck"):
        run(rows=128, epochs=1, engines=[Engine("failing", str(tmp_path / "failing.py"))], settings=settings)


def test_a_program_that_hangs(settings, tmp_path, monkeypatch):
    path = tmp_path / "hanging.py"
    path.write_text("import time\nprint('so far', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setattr(launch, "_TIMEOUT", 15)
    with pytest.raises(RunFailed, match="not end within 15 s; its last lines: so far") as raised:
        run(rows=128, epochs=1, engines=[Engine("hanging", str(path))], settings=settings)
    assert not family.groups(settings.home)
    with open(raised.value.fix.removeprefix("read ")) as log:  # it is still there
        assert log.read() == "so far\n"


def test_lines_that_changed():
    counts = {engine.name: engine.changed_lines for engine in ENGINES}
    assert counts["one process"] == 0
    assert (
        5 <= counts["torchrun"] < counts["TorchDistributor, local"] == counts["TorchDistributor, executors"]
    )
    assert counts["Ray Train, DataLoader"] < counts["Ray Train, Ray Data"]


def test_a_rank_that_is_killed(settings, tmp_path):
    launch.write_rows(tmp_path, 1_280)
    death = launch.kill_rank(TORCHRUN, tmp_path / "run", settings, epochs=1, waiting=lambda: None)
    assert death["status"] != 0 and death["seconds"] > 0 and death["attempts"] == 1
    assert not family.groups(settings.home)


def test_the_programs_for_spark_differ_in_session_and_mode_alone():
    local, executors = (engine.path.read_text().splitlines()[1:] for engine in ENGINES[-2:])
    changed = [pair for pair in zip(local, executors, strict=True) if pair[0] != pair[1]]
    assert [theirs.strip() for _, theirs in changed] == [
        "with spark.session(workers=2):",
        "TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(train)",
    ]
