"""TorchDistributor reports into the panel; its errors come with their cures; nothing of a run is left."""

import contextlib
import inspect
import os
import re
import signal
import socket
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from labkit.errors import LabError, RunFailed, RunStopped
from labkit.local import family, spark
from labkit.panel.drawing import snapshot
from labkit.panel.reporters import NullReporter
from labkit.runs import record as records
from labkit.spark import panel as spark_panel
from labkit.spark.panel import SparkPanel
from labs import interrupt_when, until


@pytest.fixture(scope="module")
def lab(home):
    """A cluster with two executors: local mode works in it, too."""
    return spark.session(workers=2)


def torch_distributor(*, num_processes=2, use_gpu=False, local_mode):
    from pyspark.ml.torch.distributor import TorchDistributor

    return TorchDistributor(num_processes=num_processes, local_mode=local_mode, use_gpu=use_gpu)


@pytest.fixture(params=["local", "executors"])
def distributor(request, lab):
    return torch_distributor(local_mode=request.param == "local")


@pytest.fixture
def local(lab):
    return torch_distributor(local_mode=True)


@pytest.fixture
def on_executors(lab):
    return torch_distributor(local_mode=False)


def panel_of(name: str) -> SparkPanel:
    return SparkPanel(name, epochs=2, reporter=NullReporter())


def test_ranks_are_followed(distributor, lab, capsys):
    panel = panel_of("07-report")

    def train(epochs):
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank, model = dist.get_rank(), torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        print(f"hello from {rank}")
        for _ in range(epochs):
            for x in torch.utils.data.DataLoader(torch.ones(32, 1), batch_size=8):
                model(x).mean().backward()
                optimizer.step()
        dist.barrier()  # a rank that left at once could close a connection that the other is still opening
        dist.destroy_process_group()
        return {"loss": 0.5, "group": os.environ[family.MARK]}  # by which a session finds its ranks

    with panel.watch(distributor):
        assert distributor.run(train, 2) == {"loss": 0.5, "group": lab.mark[family.MARK]}
    state = panel.state
    assert (state.status, state.world_size, len(state.workers)) == ("finished", 2, 2)
    assert state.metrics() == {"loss": 0.5} and {one.rows for one in state.workers.values()} == {64}
    (record,) = [r for r in records.find(os.environ["LABKIT_HOME"]) if r.run_id == panel.run_id]
    assert (record.engine, record.workers, record.state) == ("TorchDistributor", 2, "finished")
    assert record.epochs == 2
    printed = capsys.readouterr()
    assert "hello" not in printed.out + printed.err  # it is in the panel, and in the log
    assert sorted(state.prints) == ["[rank 0] hello from 0", "[rank 1] hello from 1"]
    log = Path(dict(panel.files())["printed by torchrun and the ranks"])
    assert "hello from 1" in log.read_text()
    assert family.MARK not in os.environ
    assert lab.ranks() == []


def test_a_file_as_it_is_and_one_that_fails(local, tmp_path):
    """pyspark itself says nothing of a failure in local mode."""
    (tmp_path / "next_to.py").write_text("WORD = 'next_to'\n")
    (tmp_path / "train.py").write_text(
        "import os, sys\nfrom next_to import WORD\nif os.environ['RANK'] == '0': print(WORD, sys.argv[1:])\n"
    )
    panel = panel_of("07-file")
    with panel.watch(local):
        assert local.run(str(tmp_path / "train.py"), "--epochs=3") is None
    assert list(panel.state.prints) == ["next_to ['--epochs=3']"]
    (tmp_path / "train.py").write_text("raise ValueError('a bad file')\n")
    with pytest.raises(RunFailed, match="raised ValueError: a bad file"), panel_of("07-bad").watch(local):
        local.run(str(tmp_path / "train.py"))


def test_a_path_and_what_it_prints_with_a_progress_bar(local, tmp_path):
    lines = "import os, sys\nif os.environ['RANK'] == '0':\n"
    lines += "    for n in range(5): sys.stdout.write(f'\\r{n}/5'); sys.stdout.flush()\n"
    lines += "    print('\\rdone'); sys.stdout.write('last')\n"
    (tmp_path / "train.py").write_text(lines)
    panel = panel_of("07-path")
    with panel.watch(local):
        local.run(tmp_path / "train.py")
    assert list(panel.state.prints) == ["done", "last"]
    assert panel.state.note.startswith("A file isn't followed step by step")


@pytest.mark.parametrize(
    "program, fact, fix",
    [
        (("tran.py",), "there is no file", "did you mean 'train.py'"),
        (({"loss": 1.0},), "a value of type dict", r"distributor\.run\(train, …\)"),
        ((None,), "a value of type NoneType", r"distributor\.run\(train, …\)"),
    ],
)
def test_what_cannot_run_is_refused_in_words(program, fact, fix, tmp_path, monkeypatch):
    class Distributor:
        num_processes, local_mode = 2, True

        def run(self, *program):
            raise AssertionError("it was started")

    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    distributor = Distributor()
    with pytest.raises(LabError, match=fact) as refused, panel_of("07-refused").watch(distributor):
        distributor.run(*program)
    assert re.search(fix, refused.value.fix)


def test_a_module_that_cannot_be_run(local):
    with (
        pytest.raises(RunFailed, match="No module named 'my_package'") as raised,
        panel_of("07-m").watch(local),
    ):
        local.run("-m", "my_package.train")
    assert "install my_package on each machine" in raised.value.fix and "cloudpickle" not in raised.value.fix
    assert "_TorchrunFailed" not in str(raised.value)


def test_a_function_in_which_nothing_is_seen(local):
    panel = panel_of("07-launcher")
    with panel.watch(local):
        local.run(lambda: None)
    assert panel.state.note.startswith("Neither a step nor a report was seen")


def test_a_rank_that_raises_after_and_before_the_ranks_met(distributor, lab):
    def meet(early):
        import torch.distributed as dist

        if os.environ["RANK"] == "1" and early:
            raise ValueError("a bad row")
        dist.init_process_group("gloo")
        if os.environ["RANK"] == "1":
            raise ValueError("a bad row")
        dist.barrier()

    for early in (True, False):
        panel = panel_of("07-raises")
        with pytest.raises(RunFailed, match="rank 1 raised ValueError: a bad row"), panel.watch(distributor):
            distributor.run(meet, early)
        (failure,) = panel.state.failures
        assert failure.text.startswith("meet, ") and "bad row" in failure.text  # no frame of pyspark
        assert lab.ranks() == []


def test_a_rank_that_is_killed(local, lab):
    def train():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(900)

    with pytest.raises(RunFailed, match="rank 1 .*SIGKILL"), panel_of("07-kill").watch(local):
        local.run(train)
    assert lab.ranks() == []


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["function", "file", "unheard"])
def test_a_port_that_another_program_takes_before_torchrun_binds_it(
    on_executors, lab, tmp_path, kind, monkeypatch
):
    """TorchDistributor chooses a free port and releases it; torchrun binds it seconds later.

    On a busy machine pyspark may not pass on what torchrun has said about it.
    """
    taken, over = [], threading.Event()
    if kind == "unheard":
        server = "pyspark.ml.torch.log_communication.WriteLogToStdout"
        monkeypatch.setattr(f"{server}.handle", lambda self: list(self._read_bline()))  # and shows none of it

    def meet():
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item()

    def take() -> None:
        while not taken and not over.wait(0.02):
            for process in [one.process for one in family.running(lab.home, lab.group)]:
                with contextlib.suppress(psutil.Error, OSError):
                    found = re.search(r"--rdzv_endpoint=127.0.0.1:(\d+)", " ".join(process.cmdline()))
                    if found and not taken:
                        taken.append(socket.create_server(("127.0.0.1", int(found[1]))))

    (tmp_path / "train.py").write_text(
        textwrap.dedent(inspect.getsource(meet)) + "\nprint('total', meet())\n"
    )
    thief = threading.Thread(target=take, daemon=True)
    thief.start()
    try:
        panel = panel_of("07-port")
        with panel.watch(on_executors):
            total = on_executors.run(str(tmp_path / "train.py") if kind == "file" else meet)
        assert taken  # it did happen
        assert total == 2.0 or list(panel.state.prints) == ["total 2.0"] * 2
        assert ("why was not heard" if kind == "unheard" else "another program") in panel.state.note
        assert "run" not in vars(on_executors)
    finally:
        over.set()
        thief.join()
        for server in taken:
            server.close()


def test_a_line_of_another_torchrun_in_the_middle_of_a_traceback_makes_no_prints_of_it(tmp_path):
    said = []
    with spark_panel.Output(tmp_path / "log", said.append, lambda: None).captured():
        print("epoch 1")
        print("Traceback (most recent call last):\n  File 'a.py', line 1, in main")
        print("[W1127 08:00:00.000 socket.cpp:767] [c10d] the client socket has failed to connect\n")
        print("    run(args)\nRuntimeError: no store")
        print("epoch 2")
    assert said == ["epoch 1", "epoch 2"]


def test_silence_has_words(local, monkeypatch, capsys):
    monkeypatch.setattr(spark_panel, "_SILENT_SECONDS", 0.5)
    said, drawn, panel = [], [], panel_of("07-silent")

    def listen() -> None:
        until(lambda: panel.state.hang)
        said.extend(panel.state.hang)
        drawn.append(snapshot(panel.state, time.time()).html)
        print("from another thread")

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with panel.watch(local):
        local.run(time.sleep, 8)
    listener.join()
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("from another thread\n", "")  # it stays in the notebook
    assert said[0].startswith("no word of a rank") and said[1].endswith("of 2 rank processes run")
    assert drawn and not re.search(r"\d{3,} h", drawn[0])  # not counted from 1970


def test_what_is_no_distributor_and_where_ranks_find_the_panel(monkeypatch):
    from pyspark import SparkContext

    with pytest.raises(LabError, match="TorchDistributor"):
        panel_of("07-none").watch("distributor")

    class Active:
        master = "spark://10.0.0.8:7077"

        def getConf(self):
            return {"spark.driver.host": "10.0.0.7"}

    monkeypatch.setattr(SparkContext, "_active_spark_context", Active())
    assert panel_of("m").host() == "10.0.0.7"


# -- the errors of lesson 07 --------------------------------------------------------------------------


def test_what_cannot_be_pickled(on_executors, lab):
    lock, session = threading.Lock(), lab.spark
    for uses, fix in ((lambda: lock, "inside the function"), (lambda: session.range(3).count(), "Parquet")):
        panel = panel_of("a")
        with pytest.raises(RunFailed, match="no rank was started") as raised, panel.watch(on_executors):
            on_executors.run(uses)
        assert fix in raised.value.fix
        (failure,) = panel.state.failures
        assert failure.rank is None


def test_a_module_that_is_not_there_and_its_cure(on_executors, tmp_path, monkeypatch):
    from pyspark import cloudpickle

    (tmp_path / "my_own_layers.py").write_text("def doubled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_layers

    def use_it():
        return my_own_layers.doubled(21)

    with pytest.raises(RunFailed, match="my_own_layers") as raised, panel_of("c").watch(on_executors):
        on_executors.run(use_it)
    assert "register_pickle_by_value(my_own_layers)" in raised.value.fix
    cloudpickle.register_pickle_by_value(my_own_layers)
    with panel_of("d").watch(on_executors):
        assert on_executors.run(use_it) == 42


def test_no_gpu_and_more_processes_than_slots(lab):
    with pytest.raises(RunFailed) as raised, panel_of("e"):
        torch_distributor(local_mode=True, use_gpu=True)
    assert "use_gpu=False" in raised.value.fix
    crowd = torch_distributor(num_processes=3, local_mode=False)
    with pytest.raises(RunFailed, match="slots"), panel_of("f").watch(crowd):
        crowd.run(os.getpid)


def test_interrupted(local, lab):
    """As by the Stop button: the ranks end, too."""
    panel = panel_of("i")

    def wait():
        time.sleep(900)

    interrupt_when(lambda: len(panel.state.workers) == 2)
    with pytest.raises(RunStopped), panel.watch(local):
        local.run(wait)
    assert panel.state.status == "stopped"
    assert lab.ranks() == []
