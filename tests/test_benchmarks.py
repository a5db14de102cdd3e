"""What the benchmarks share, and that each says what it is; the seconds themselves are no test's matter."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import benchmarks
from benchmarks import engines, interrupts, torch_throughput
from benchmarks._models import mlp
from benchmarks._paired import Results, measure
from labkit.runs import record as records

pytestmark = pytest.mark.covers("labkit/interrupts.py", "benchmarks/")


FOLDER = Path(benchmarks.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


@pytest.fixture
def results():
    results = Results("example", ours="lab")
    for lab, stock in ((1, 2), (4, 5), (3, 12)):
        results.add("lab", {"whole": lab})
        results.add("stock", {"whole": stock})
    return results


def test_a_ratio_is_the_median_of_pairs_of_the_same_round(results):
    assert results.ratio("whole", "stock") == 0.5  # of 0.5, 0.8 and 0.25; that of the medians is 0.6


def test_ways_are_measured_in_turn():
    order = []
    ways = {way: lambda way=way: order.append(way) or {"s": len(order)} for way in ("lab", "stock")}
    results = Results("example", ours="lab")
    measure(ways, results, repeat=2)
    assert order == ["lab", "stock", "stock", "lab"]
    assert results.seconds == {"s": {"lab": [1, 4], "stock": [2, 3]}}


def test_figures_are_written_as_a_run_record_and_the_last_line_is_the_ratio(results, tmp_path, capsys):
    results.finish(0.5, json=tmp_path / "run_record.json", rows=100)
    record = records.read(tmp_path / "run_record.json")
    assert (record.name, record.metrics) == ("benchmark-example", {"ratio": 0.5})
    assert record.extra["figures"] == {"whole": {"lab": [1, 4, 3], "stock": [2, 5, 12]}}
    assert capsys.readouterr().out.splitlines()[-1] == "example: ratio=0.50"


def test_a_wrong_name_is_told_with_all_names_and_the_readme_has_each():
    wrong = subprocess.run([sys.executable, "-m", "benchmarks", "speed"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "no benchmark 'speed'" in wrong.stdout
    assert [line.split()[0] for line in wrong.stdout.splitlines() if line.startswith("  ")] == NAMES
    text = (FOLDER / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_the_launchers_come_to_the_same_weights(home, tmp_path):
    folder = torch_throughput.rows_folder(tmp_path, 1_280)
    for way in engines.WAYS:
        figures = engines.run(way, folder, 1, home)
        assert 0 < figures["first step"] < figures["whole program"], way
    engines.require_equal_weights(folder)
    torch.save(mlp(seed=1).state_dict(), f"{folder}-weights/torchrun.pt")
    with pytest.raises(SystemExit, match="torchrun did not train the same model"):
        engines.require_equal_weights(folder)


# -- interrupts ------------------------------------------------------------------------------------


@pytest.mark.fault
def test_interrupts_of_a_store_in_a_script_and_in_a_notebook(monkeypatch):
    for limit in ("_WITHIN", "_SETTLED", "_HUNG"):  # an import takes its time on a busy machine
        monkeypatch.setattr(interrupts, limit, 120)
    wanted = (("storage.start", "script"), ("store.stop", "script"), ("storage.start", "notebook"))
    plans = [interrupts.Plan(number, *call, 0.2 / (1 + number)) for number, call in enumerate(wanted)]
    assert [failure for _, _, failure in interrupts.campaign(plans) if failure] == []
