"""The lab on clusters that it did not start: plain `ray start` on machines without labkit."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machines
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.covers("labkit/cluster/", "labkit/check.py", "labkit/train/"),
    pytest.mark.night,
    pytest.mark.fault,
]
TOKEN = "e" * 64
JOBS = Path(__file__).with_name("cluster_jobs.py")


class Cluster:
    """A head and what has joined it.

    Attributes:
        environment: the variables that a person needs who uses it.
    """

    def __init__(self, net: machines.Network, environment: dict[str, str]) -> None:
        self.net, self.environment = net, environment
        self.head, self.address = net.machines[0], f"{net.machines[0].address}:6379"

    def run(
        self, *command: str, machine: machines.Machine | None = None, **variables: str
    ) -> tuple[int, str]:
        """Exit status and output of a Python of this checkout, by default on the head's machine."""
        shared = {"ADDRESS": self.address, "SHARED": str(self.net.folder / "shared")}
        variables = self.environment | shared | variables
        done = self.net.notebook(machine or self.head, sys.executable, *command, **variables)
        return done.returncode, done.stdout

    def job(self, name: str, **options: Any) -> dict:
        """What a job of `cluster_jobs.py` tells."""
        status, output = self.run(str(JOBS), name, **options)
        assert status == 0, output
        outcome = json.loads(output.splitlines()[-1])
        print(name, outcome)
        return outcome


def start_ray(machine: machines.Machine, *options: str, **variables: str) -> None:
    command = ["-m", "ray.scripts.scripts", "start", "--object-store-memory=100000000", *options]
    machine.run(*command, **variables)


def three_machines(net: machines.Network, environment: dict[str, str]) -> Cluster:
    """A head without a CPU for workers, and two nodes of two CPUs."""
    head = net.machine("head", own_pids=False, keeps="ray", **environment)
    # Ray gives up on a server for a client after 30 s, which a busy machine needs for its imports.
    patience = {"RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "300"}
    start_ray(head, "--head", "--port=6379", "--num-cpus=0", f"--temp-dir={net.folder}/ray", **patience)
    for name in ("node-2", "node-3"):
        node = net.machine(name, **environment)
        start_ray(node, f"--address={head.address}:6379", "--num-cpus=2")
    return Cluster(net, environment)


# The variables of the machines, and what they have besides Ray and torch.
CLUSTERS = {
    "token": ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}, ()),
    "no authentication": ({"RAY_AUTH_MODE": "disabled"}, ("s3fs",)),
}


@pytest.fixture(scope="module", params=list(CLUSTERS))
def there(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    environment, installed = CLUSTERS[request.param]
    with (
        tempfile.TemporaryDirectory(prefix="lkn") as folder,
        machines.network(Path(folder), *installed) as net,
    ):
        there = three_machines(net, environment)
        # The token is all that a person has of a cluster; of one without, nothing.
        there.environment = {name: value for name, value in environment.items() if name == "RAY_AUTH_TOKEN"}
        there.kind = request.param
        yield there


def test_a_training_under_a_panel(there):
    trained = there.job("train")
    assert (trained["status"], trained["checkpoint"], trained["idle"]) == ("finished", True, True)
    assert trained["history"] == 3
    workers = trained["workers"]
    assert {(made, rows) for _, made, rows in workers.values()} == {(12, 96)}
    prints = {f"[rank {rank}] rank {rank} is on {node}" for rank, (node, *_) in workers.items()}
    assert {*trained["prints"]} == prints
    assert trained["warnings"] == [] and len(trained["nodes"]) == 3
    assert {node for node, *_ in workers.values()} == {"node-2", "node-3"}
    # What was set for the connection is gone again; the first is Ray's own.
    assert trained["left"] == sorted({"RAY_CLIENT_MODE", *there.environment})


def test_a_validation_and_a_sweep(there):
    outcome = there.job("validation")
    assert (outcome["status"], outcome["validated"], outcome["metrics"]) == (
        "finished",
        ["validated"] * 3,
        [1.0] * 3,
    )
    outcome = there.job("sweep")
    assert (outcome["status"], outcome["errors"], outcome["trials"]) == ("finished", 0, 2)
    assert outcome["best"] == {"x": 2} and outcome["idle"]


def test_check_says_what_is_there(there):
    """On each node, also where nothing is installed but Ray and torch."""
    home = {"LABKIT_HOME": f"{there.net.folder}/shared/home"}
    status, output = there.run("-m", "labkit", "check", there.address, "--json", **home)
    findings = {finding["topic"]: finding for finding in json.loads(output)["findings"]}
    assert status == 0, output
    assert [topic for topic in ("nodes", "torch", "home") if not findings[topic]["ok"]] == []
    assert findings["room"]["ok"] and "3 nodes; 4 of 4 CPUs" in findings["room"]["text"]
    assert not findings["object store"]["ok"]  # the lab's own is on this machine
    status, output = there.run("-m", "labkit", "check", there.address, LABKIT_S3_ENDPOINT="http://head:1")
    assert status == 0, output
    assert "[FIX] home: 0 of" in output and "[FIX] object store: 0 of" in output, output
    why = "NoCredentialsError" if there.kind == "no authentication" else "No module named 's3fs'"
    assert why in output, output


@pytest.mark.parametrize("there", ["no authentication"], indirect=True)
def test_a_ray_client_behind_nat(there):
    """No port of that notebook can be reached. The training runs, and its panel sees it."""
    laptop = there.net.machine("laptop", nat=True)
    options = {"machine": laptop, "ADDRESS": f"ray://{there.head.address}:10001"}
    outcome = there.job("slowly", **options)
    assert outcome["status"] == "finished" and outcome["checkpoint"]
    assert {(made, rows) for _, made, rows in outcome["workers"].values()} == {(12, 96)}
    error = there.job("sweep", **options)["error"]
    assert "Ray client" in error[1] and "ray job submit" in error[2] and "JupyterLab" in error[2]
