"""TorchDistributor reports into the panel; its errors come with their cures; nothing of a run is left."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from labkit import runs
from labkit.__main__ import main
from labkit.errors import BadInput, RunFailed, RunStopped
from labkit.local import family, spark
from labkit.local.lab import Lab
from labkit.local.spark import group
from labkit.panel.drawing import snapshot
from labkit.panel.reporters import NullReporter
from labkit.spark import panel as spark_panel
from labkit.spark.panel import SparkPanel
from labkit.worker.events import Failure, Returned, Worker
from labs import interrupt_when, shown, until

pytestmark = [pytest.mark.slow, pytest.mark.covers("labkit/panel/", "labkit/worker/", "labkit/spark/")]


@pytest.fixture(scope="module")
def session(home):
    """A cluster with two executors: local mode works in it, too."""
    from pyspark.sql import SparkSession

    spark.prepare()
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    return builder.config("spark.cores.max", 2).getOrCreate()


def ranks() -> list:
    """The processes of ranks that torchrun has started for this process's Spark."""
    members = Lab(Path(os.environ["LABKIT_HOME"])).running(group())
    return [member for member in members if "TORCHELASTIC_RUN_ID" in member.environment]


def torch_distributor(*, num_processes=2, use_gpu=False, local_mode):
    from pyspark.ml.torch.distributor import TorchDistributor

    return TorchDistributor(num_processes=num_processes, local_mode=local_mode, use_gpu=use_gpu)


@pytest.fixture(params=["local", "executors"])
def distributor(request, session):
    return torch_distributor(local_mode=request.param == "local")


@pytest.fixture
def local(session):
    return torch_distributor(local_mode=True)


@pytest.fixture
def on_executors(session):
    return torch_distributor(local_mode=False)


@pytest.fixture
def panel(home):
    return SparkPanel("07", epochs=2, reporter=NullReporter())


def test_ranks_are_followed(distributor, panel, home, capsys):

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

    mark = Lab(home).mark(group())[family.MARK]
    with panel.watch(distributor):
        assert distributor.run(train, 2) == {"loss": 0.5, "group": mark}
    state = panel.state
    assert (state.status, state.world_size, len(state.workers)) == ("finished", 2, 2)
    assert state.metrics() == {"loss": 0.5} and {worker.rows for worker in state.workers.values()} == {64}
    record = runs.get(panel.run_id)
    assert (record.engine, record.workers, record.state) == ("TorchDistributor", 2, "finished")
    assert record.epochs == 2
    printed = capsys.readouterr()
    assert "hello" not in printed.out + printed.err  # it is in the panel, and in the log
    assert sorted(state.prints) == ["[rank 0] hello from 0", "[rank 1] hello from 1"]
    log = Path(dict(panel.files())["printed by torchrun and the ranks"])
    if distributor.local_mode:  # from executors, pyspark passes on what comes within 0.2 s of the end
        assert "hello from 1" in log.read_text()
    assert family.MARK not in os.environ
    assert ranks() == []


LOOP = """
import os, sys, torch
from next_to import WORD

if __name__ == "__main__":
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(torch.ones(32, 1), batch_size=8):
        model(x).mean().backward()
        optimizer.step()
    print(WORD, sys.argv[1:])
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a space in its name, a training file, and a module that it imports."""
    folder = tmp_path / "my scripts"
    folder.mkdir()
    (folder / "next_to.py").write_text("WORD = 'next_to'\n")
    (folder / "train.py").write_text(LOOP)
    return folder


def test_a_slow_rank_is_named(distributor, panel, capsys):
    def train():
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x in torch.utils.data.DataLoader(torch.ones(40 * 4, 8), batch_size=4):
            loss = model(x).mean()
            time.sleep(0.04 * dist.get_rank())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        dist.barrier()
        dist.destroy_process_group()

    with panel.watch(distributor):
        distributor.run(train)
    strip = shown(panel).strip
    assert [who for who, _ in strip] == ["rank 0", "rank 1"]
    (cause,) = (one for one in panel.state.find_verdict().causes if one.name != "start")
    assert (cause.name, cause.rank) == ("slow rank", 1)
    assert main(["why", panel.run_id]) == 0
    assert "slow rank: rank 1 takes" in capsys.readouterr().out


def test_a_file_is_followed(distributor, panel, folder):
    with panel.watch(distributor):
        assert distributor.run(str(folder / "train.py"), "--epochs=3", 5) is None
    assert sorted(panel.state.prints) == [f"[rank {rank}] next_to ['--epochs=3', '5']" for rank in (0, 1)]
    assert {worker.rows for worker in panel.state.workers.values()} == {32}
    assert panel.state.note == ""


def test_a_path_a_relative_name_and_a_module(local, panel, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for arguments in ((folder / "train.py",), ("train.py",), ("-m", "train")):
        with panel.watch(local):
            local.run(*arguments)
        assert sorted(panel.state.prints) == ["[rank 0] next_to []", "[rank 1] next_to []"]


def test_a_progress_bar_in_a_file_is_one_line(local, panel, folder):
    (folder / "bar.py").write_text(
        "import sys, time\nfrom tqdm import tqdm\n"
        "for _ in tqdm(range(40), file=sys.stdout, desc='epoch'):\n    time.sleep(0.01)\n"
        "for _ in tqdm(range(40), desc='on stderr'):\n    time.sleep(0.01)\n"
    )
    with panel.watch(local):
        local.run(folder / "bar.py")
    assert len(panel.state.prints) == 2
    assert all("epoch: 100%" in line and line.count("%") == 1 for line in panel.state.prints)


FAILS = {
    "raises": ("raise ValueError('a bad file')", "raised ValueError: a bad file"),
    "refuses its command line": (
        "import argparse as a; p = a.ArgumentParser(); p.add_argument('--lr', required=True); p.parse_args()",
        "arguments are required: --lr",
    ),
    "exits": ("import sys; sys.exit('no data')", "SystemExit: no data"),
    "fails in one rank": (
        "import os; os.environ['RANK'] == '0' or print('well') or exit(3)",
        "rank 1 ended with SystemExit: 3|rank 1 raised SystemExit: 3",
    ),
    "is no Python": ("def (", "SyntaxError"),
    "is killed": ("import os; os.environ['RANK'] == '0' or os.kill(os.getpid(), 9)", "rank 1 was killed"),
}


@pytest.mark.parametrize("code, fact", FAILS.values(), ids=FAILS)
def test_a_file_that_fails_is_an_error(local, panel, folder, code, fact):
    """pyspark itself returns normally in local mode."""
    (folder / "bad.py").write_text(code + "\n")
    after = []
    with pytest.raises(RunFailed, match=fact) as raised, panel.watch(local):
        local.run(str(folder / "bad.py"))
        after.append("run() returned")
    assert not after
    assert "_" not in type(raised.value).__name__ and raised.value.fix


def test_what_is_neither_a_function_nor_a_file(local, panel, folder, monkeypatch):
    monkeypatch.chdir(folder)
    cases = (
        (({"loss": 0.5},), {}, "its first argument is of type dict", "without parentheses|no parentheses"),
        ((None,), {}, "its first argument is of type NoneType", "parentheses"),
        (("q.txt",), {}, "there is no file", "a relative one starts from"),
        ((str(folder),), {}, "there is no file", "path"),
        (("train.py",), {"lr": 0.1}, "no named arguments", r'distributor.run\("train.py", "--lr=0.1"\)'),
    )
    for arguments, named, fact, fix in cases:
        with pytest.raises(BadInput, match=fact) as raised, panel.watch(local):
            local.run(*arguments, **named)
        assert re.search(fix, raised.value.fix), raised.value.fix
    with pytest.raises(RunFailed, match="my_package") as raised, panel.watch(local):
        local.run("-m", "my_package.train")
    assert "install" in raised.value.fix and "cloudpickle" not in raised.value.fix


@pytest.mark.parametrize("rank, how", [("0", "raises"), ("0", "is killed"), ("1", "exits")])
def test_a_function_that_one_rank_finishes_is_an_error(local, panel, rank, how):
    """pyspark itself returns the value of the rank that has one."""

    def train():
        if os.environ["RANK"] != rank:
            return {"accuracy": 0.9}
        time.sleep(1)  # the other one has returned by then
        if how == "raises":
            raise ValueError("a bad row")
        if how == "exits":
            raise SystemExit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    after = []
    with pytest.raises(RunFailed, match=f"rank {rank} "), panel.watch(local):
        after.append(local.run(train))
    assert not after


def test_a_run_in_which_nothing_was_seen_says_so(local, panel):
    def launcher():
        subprocess.run([sys.executable, "-c", "print('trained elsewhere')"], check=True)

    with panel.watch(local):
        local.run(launcher)
    assert shown(panel).notes == [spark_panel._NOTHING_SEEN]
    assert "trained elsewhere" in Path(dict(panel.files())["printed by torchrun and the ranks"]).read_text()
    with panel.watch(local):
        local.run(lambda: {"loss": 0.5})
    assert shown(panel).notes == []


def test_a_rank_that_leaves_early_without_an_error(local, panel):
    def train():
        if os.environ["RANK"] == "1":
            os._exit(0)
        return {"loss": 0.5}

    with panel.watch(local):
        assert local.run(train) == {"loss": 0.5}


def test_rows_of_a_dataframe(on_executors, panel, session):
    def train():
        from pyspark.ml.torch.distributor import _get_spark_partition_data_loader

        loader = _get_spark_partition_data_loader(num_samples=8, batch_size=4, num_workers=0)
        return {"rows": sum(len(x) for x, _ in loader)}

    table = session.createDataFrame([(float(n), n % 2) for n in range(16)], ["x", "y"]).repartition(2)
    with panel.watch(on_executors):
        assert on_executors._train_on_dataframe(train, table) == {"rows": 8}
    assert len(panel.state.workers) == 2
    assert "_train_on_dataframe" not in vars(on_executors)


def test_a_rank_that_raises_after_and_before_the_ranks_met(distributor, panel):
    def meet(early):
        import torch.distributed as dist

        if os.environ["RANK"] == "1" and early:
            raise ValueError("a bad row")
        dist.init_process_group("gloo")
        if os.environ["RANK"] == "1":
            raise ValueError("a bad row")
        dist.barrier()

    for early in (True, False):
        with pytest.raises(RunFailed, match="rank 1 raised ValueError: a bad row"), panel.watch(distributor):
            distributor.run(meet, early)
        (failure,) = panel.state.failures
        assert failure.text.startswith("meet, ") and "bad row" in failure.text  # no frame of pyspark
        assert ranks() == []


@pytest.mark.fault
def test_a_port_that_another_program_takes_before_torchrun_binds_it(on_executors, panel):
    """TorchDistributor chooses a free port and releases it; torchrun binds it seconds later."""
    taken, over = [], threading.Event()

    def take() -> None:
        while not taken and not over.wait(0.02):
            for member in Lab(Path(os.environ["LABKIT_HOME"])).running(group()):
                with contextlib.suppress(psutil.Error, OSError):
                    command = " ".join(member.process.cmdline())
                    port = re.search(r"--rdzv_endpoint=127.0.0.1:(\d+)", command)
                    if port and not taken:
                        taken.append(socket.create_server(("127.0.0.1", int(port[1]))))

    thief = threading.Thread(target=take, daemon=True)
    thief.start()
    try:
        with pytest.raises(RunFailed) as raised, panel.watch(on_executors):
            on_executors.run(os.getpid)
    finally:
        over.set()
        thief.join()
        for server in taken:
            server.close()
    assert taken  # it did happen
    assert "run the cell again" in raised.value.fix, (raised.value.fact, raised.value.fix)
    with panel.watch(on_executors):
        on_executors.run(os.getpid)


@pytest.mark.each_change
def test_a_second_run_in_a_block_is_judged_by_itself(tmp_path, panel, monkeypatch):
    """The reader has caught the failure of the first, and tries again with another setting."""
    monkeypatch.setattr(spark_panel, "_SILENT_SECONDS", 0.2)

    class Distributor:
        num_processes = 1
        local_mode = True

        def run(self, function, outcome):
            print(f"printed by {outcome}")
            for seen in (Worker(), Failure("ValueError: lr") if outcome == "bad" else Returned()):
                panel.receive(replace(seen, run=panel.run_id))
            if outcome == "bad":
                raise RuntimeError("ValueError: lr")
            return {"loss": 0.5}

        _train_on_dataframe = run

    distributor = Distributor()
    with panel.watch(distributor):
        time.sleep(1)  # such as a Spark that reads a table: no rank is silent yet
        assert not panel.state.hang
        with pytest.raises(RuntimeError, match="lr"):
            distributor.run(time.sleep, "bad")
        assert distributor.run(time.sleep, "good") == {"loss": 0.5}
        assert "bad" not in panel._log_end() and "good" in panel._log_end()
    assert panel.state.status == "finished" and not panel.state.hang


def test_silence_has_words(local, panel, monkeypatch, capsys):
    monkeypatch.setattr(spark_panel, "_SILENT_SECONDS", 0.5)
    drawn = []

    def listen() -> None:
        until(lambda: panel.state.hang)
        now = panel.state.now()
        drawn.append(snapshot(panel.state, panel.view(panel.state, now), now))
        print("from another thread")

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with panel.watch(local):
        local.run(time.sleep, 8)
    listener.join()
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("from another thread\n", "")  # it stays in the notebook
    html = drawn[0].html
    assert "no word of a rank for" in html and "of 2 rank processes run" in html and "printed last:" in html
    (silent,) = re.findall(r"nothing heard for ([^<]*)<", html)
    assert re.fullmatch(r"[\d.]+ m?s", silent), silent  # of this run, not since 1970


@pytest.mark.each_change
def test_what_is_no_distributor_and_where_ranks_find_the_panel(panel):
    with pytest.raises(BadInput, match="TorchDistributor"):
        panel.watch("distributor")

    class Active:
        num_processes = 2

        class spark:
            conf = {"spark.driver.host": "10.0.0.7", "spark.master": "spark://10.0.0.8:7077"}

    assert panel.watch(Active()).host() == "10.0.0.7"


def test_a_rank_that_was_killed_is_found_in_torchruns_report(panel):
    """The others have failed, too: by a lost connection, or since torchrun ended them."""
    report = """Failures:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 7)  (SIGTERM)
Root Cause (first observed failure):
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 8)  (SIGKILL)
"""
    panel._log.parent.mkdir(parents=True, exist_ok=True)
    panel._log.write_text(report)
    panel.state.fail("RuntimeError: Connection closed by peer", 0)
    panel._keep_killed()
    assert [(failure.rank, failure.text) for failure in panel.state.failures] == [(1, "killed (SIGKILL)")]


# -- the errors of lesson 07 --------------------------------------------------------------------------


def test_what_cannot_be_pickled(on_executors, panel, session):
    lock = threading.Lock()
    for uses, fix in ((lambda: lock, "inside the function"), (lambda: session.range(3).count(), "Parquet")):
        with pytest.raises(RunFailed, match="no rank was started") as raised, panel.watch(on_executors):
            on_executors.run(uses)
        assert fix in raised.value.fix
        (failure,) = panel.state.failures
        assert failure.rank is None


def test_a_module_that_is_not_there_and_its_cure(on_executors, panel, tmp_path, monkeypatch):
    from pyspark import cloudpickle

    (tmp_path / "my_own_layers.py").write_text("def doubled(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_layers

    def use_it():
        return my_own_layers.doubled(21)

    with pytest.raises(RunFailed, match="my_own_layers") as raised, panel.watch(on_executors):
        on_executors.run(use_it)
    assert "register_pickle_by_value(my_own_layers)" in raised.value.fix
    cloudpickle.register_pickle_by_value(my_own_layers)
    with panel.watch(on_executors):
        assert on_executors.run(use_it) == 42


def test_no_gpu_and_more_processes_than_slots(session, panel):
    with pytest.raises(RunFailed) as raised, panel:
        torch_distributor(local_mode=True, use_gpu=True)
    assert "use_gpu=False" in raised.value.fix
    crowd = torch_distributor(num_processes=3, local_mode=False)
    with pytest.raises(RunFailed, match="slots"), panel.watch(crowd):
        crowd.run(os.getpid)


def test_interrupted(local, panel):
    """As by the Stop button: the ranks end, too."""

    def wait():
        time.sleep(900)

    interrupt_when(lambda: len(panel.state.workers) == 2)
    with pytest.raises(RunStopped), panel.watch(local):
        local.run(wait)
    assert panel.state.status == "stopped"
    assert ranks() == []
