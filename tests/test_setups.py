"""The ways in besides `make lab`: an image, a devcontainer, a hub. What can run here runs."""

import http.server
import re
import subprocess
import sys
import threading
import time
import tomllib
import types
import urllib.error
import urllib.request
from pathlib import Path

import json5
import pytest
import yaml
from packaging.specifiers import SpecifierSet

from labkit.machine import free_port
from labkit.system import supervision

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "setups"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def python_of(image: str) -> str:
    return re.search(r"python:(3\.\d+)", image)[1]


def test_the_image_copies_what_exists_and_runs_without_root():
    text = (FOLDER / "Dockerfile").read_text()
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python_of(text)}.99")
    for line in re.findall(r"(?m)^COPY (.+) \S+$", text):
        assert [name for name in line.split() if not (ROOT / name).exists()] == []
    for stage in re.split(r"(?m)^FROM ", text)[1:]:
        assert re.findall(r"(?m)^USER (.+)$", stage)[-1] == "1000"
        assert stage.count("pip install") == stage.count("--constraint") == 1


def test_one_learner_s_container_is_for_this_machine_alone():
    service = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["lab"]
    assert service["ports"] == ["127.0.0.1:8888:8888"]
    assert (service["cpus"], service["mem_limit"], service["shm_size"]) == (2, "6g", "2gb")
    assert f"AS {service['build']['target']}\n" in (FOLDER / "Dockerfile").read_text()


def test_the_devcontainer_has_our_python_and_sets_the_lab_up():
    config = json5.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python_of(config['image'])}.99")
    assert config["hostRequirements"] == {"cpus": 2, "memory": "8gb", "storage": "32gb"}
    make, target = config["postCreateCommand"].split()
    assert make == "make" and f"\n{target}: " in (ROOT / "Makefile").read_text()


def test_the_hub_limits_each_learner_and_fits_its_image():
    values = yaml.safe_load((FOLDER / "jupyterhub.yaml").read_text())
    server = values["singleuser"]
    assert (server["cpu"]["limit"], server["memory"]["limit"]) == (2, "6G")
    assert server["image"]["tag"] == PROJECT["version"]
    assert [mount["mountPath"] for mount in server["storage"]["extraVolumeMounts"]] == ["/dev/shm"]
    for name, code in values["hub"]["extraConfig"].items():
        compile(code, name, "exec")
    guide = (FOLDER / "jupyterhub.md").read_text()
    assert f"{server['image']['name']}:{server['image']['tag']}" in guide


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_proxy_adds_the_token_of_the_cluster_that_there_is(home):
    c = types.SimpleNamespace(ServerProxy=types.SimpleNamespace())
    path = FOLDER / "jupyter_server_config.py"
    exec(compile(path.read_text(), path, "exec"), {"c": c})
    dashboard = c.ServerProxy.servers["ray-dashboard"]
    assert Path(dashboard["command"][1]).exists()
    assert dashboard["request_headers_override"]() == {}
    home.mkdir()
    (home / "ray-token").write_text("abc\n")
    assert dashboard["request_headers_override"]() == {"X-Ray-Authorization": "Bearer abc"}


class Echo(http.server.BaseHTTPRequestHandler):
    """A page that shows what reached it."""

    def do_GET(self):
        body = f"{self.path} {self.headers['X-Ray-Authorization']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_the_forwarder_finds_the_dashboard_of_each_new_cluster(home):
    port = free_port()
    process = subprocess.Popen([sys.executable, FOLDER / "dashboard.py", str(port)])
    try:
        with pytest.raises(urllib.error.HTTPError, match="503") as none:
            _get(port, "/")
        assert "Run cluster.start()" in none.value.read().decode()
        for page in ("/first", "/second"):  # two clusters, one after the other, on other ports
            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                supervision.note(home, "cluster", {"dashboard": f"http://127.0.0.1:{server.server_port}"})
                assert _get(port, page) == f"{page} Bearer abc"
                server.shutdown()
    finally:
        process.terminate()
        process.wait(10)


def _get(port: int, path: str) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"X-Ray-Authorization": "Bearer abc", "Connection": "close"}
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:  # it has not started to listen
            assert time.monotonic() < deadline
            time.sleep(0.2)
