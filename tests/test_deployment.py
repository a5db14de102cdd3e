"""The files that start the lab elsewhere: accepted by their schemas, with tested versions and no secret."""

import re
import socket
import subprocess
import sys
import types
from pathlib import Path

import json5
import pytest
import requests
import yaml
from packaging.specifiers import SpecifierSet

import web
from labkit.local.lab import Lab
from labkit.machine import free_port
from labs import until
from requirements import PINS, PROJECT

ROOT = Path(__file__).resolve().parent.parent
CLUSTERS, SETUPS = ROOT / "docs" / "clusters", ROOT / "docs" / "setups"
FILES = sorted(path for path in CLUSTERS.iterdir() if path.name != "README.md")
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/ISSUE_TEMPLATE/lesson.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/problem.yml": "github-issue-forms",
    ".github/workflows/ci.yml": "github-workflows",
    ".github/workflows/pages.yml": "github-workflows",
    ".github/workflows/weekly.yml": "github-workflows",
    "docs/clusters/compose.yaml": "compose-spec",
    "docs/setups/compose.yaml": "compose-spec",
}


@pytest.mark.parametrize("path, schema", SCHEMAS.items(), ids=SCHEMAS)
def test_its_own_schema_accepts_it(path, schema):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# -- a cluster -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["aws", "gcp", "onprem"])
def test_ray_accepts_the_launcher_files(name, monkeypatch):
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(ROOT)  # file_mounts name paths from there
    config = yaml.safe_load((CLUSTERS / f"ray-up-{name}.yaml").read_text())
    validate_config(prepare_config(config))
    for here in config["file_mounts"].values():
        assert here.startswith("~") or (ROOT / here).exists()
    starts = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in starts[0]


@pytest.mark.parametrize("name", ["kuberay-cluster", "kuberay-job"])
def test_kuberay_files_name_the_tested_ray_a_token_and_a_user_who_is_not_root(name):
    resource = yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text())
    spec = resource["spec"].get("rayClusterSpec", resource["spec"])
    assert spec["rayVersion"] == PINS["ray"]
    assert spec["authOptions"] == {"mode": "token"}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["resources"]["limits"] == container["resources"]["requests"]


def test_compose_refuses_to_start_without_a_token_and_opens_its_dashboard_here_alone():
    services = yaml.safe_load((CLUSTERS / "compose.yaml").read_text())["services"]
    for name in ("head", "worker"):
        assert services[name]["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
        assert services[name]["user"] == "ray"
    assert services["head"]["ports"] == ["127.0.0.1:8265:8265"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_token_mode_is_on_the_job_exists_and_there_is_an_end(path):
    text = path.read_text()
    assert "RAY_AUTH_MODE" in text or "authOptions" in text
    for job in re.findall(r"notebooks/plain/(\w+\.py)", text):
        assert (ROOT / "notebooks" / "plain" / job).exists()
    if path.name != "Dockerfile":
        assert "teardown" in text and f"]({path.name})" in (CLUSTERS / "README.md").read_text()
    if path.suffix == ".sbatch":
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize(
    "path", [*FILES, *sorted(SETUPS.iterdir())], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_no_secret_stands_in_a_file(path):
    secret = r"(?i)(?:token|secret\w*|password|access_key\w*)\s*[:=]\s*['\"]?([\w/+=-]{16,})"
    assert re.findall(secret, path.read_text()) == []


# -- a machine: an image, a devcontainer, a hub ----------------------------------------------------------


def test_the_images_have_our_python_what_they_copy_exists_and_nobody_is_root():
    text = (SETUPS / "Dockerfile").read_text()
    devcontainer = json5.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    for image in (text, devcontainer["image"]):
        python = re.search(r"python:(3\.\d+)", image)[1]
        assert SpecifierSet(PROJECT["requires-python"]).contains(f"{python}.99")
    for line in re.findall(r"(?m)^COPY (.+) \S+$", text):
        assert [name for name in line.split() if not (ROOT / name).exists()] == []
    for stage in re.split(r"(?m)^FROM ", text)[1:]:
        assert re.findall(r"(?m)^USER (.+)$", stage)[-1] == "1000"
        assert stage.count("pip install") == stage.count("--constraint") == 1
    make, target = devcontainer["postCreateCommand"].split()
    assert make == "make" and f"\n{target}: " in (ROOT / "Makefile").read_text()


def test_a_container_is_for_this_machine_alone_and_a_hub_limits_each_learner():
    service = yaml.safe_load((SETUPS / "compose.yaml").read_text())["services"]["lab"]
    assert service["ports"] == ["127.0.0.1:8888:8888"]
    assert f"AS {service['build']['target']}\n" in (SETUPS / "Dockerfile").read_text()
    values = yaml.safe_load((SETUPS / "jupyterhub.yaml").read_text())
    server = values["singleuser"]
    assert server["cpu"]["limit"] == service["cpus"] == 2 and server["memory"]["limit"] == "6G"
    assert server["image"]["tag"] == PROJECT["version"]
    for name, code in values["hub"]["extraConfig"].items():
        compile(code, name, "exec")
    guide = (SETUPS / "jupyterhub.md").read_text()
    assert f"{server['image']['name']}:{server['image']['tag']}" in guide


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_proxy_adds_the_token_of_the_cluster_that_there_is(home):
    c = types.SimpleNamespace(ServerProxy=types.SimpleNamespace())
    path = SETUPS / "jupyter_server_config.py"
    exec(compile(path.read_text(), path, "exec"), {"c": c})
    dashboard = c.ServerProxy.servers["ray-dashboard"]
    assert Path(dashboard["command"][1]).exists()
    assert dashboard["request_headers_override"]() == {}
    home.mkdir()
    (home / "ray-token").write_text("abc\n")
    assert dashboard["request_headers_override"]() == {"X-Ray-Authorization": "Bearer abc"}


def echo(request):
    """A page that shows what reached it."""
    return 200, {}, f"{request.path} {request.headers['X-Ray-Authorization']}".encode()


def test_the_forwarder_finds_the_dashboard_of_each_new_cluster(home):
    port = free_port()

    def get(path):
        return requests.get(f"http://127.0.0.1:{port}{path}", headers={"X-Ray-Authorization": "Bearer abc"})

    process = subprocess.Popen([sys.executable, SETUPS / "dashboard.py", str(port)])
    try:
        with socket.socket() as client:
            until(lambda: client.connect_ex(("127.0.0.1", port)) == 0)
        none = get("/")
        assert none.status_code == 503 and "Run cluster.start()" in none.text
        for page in ("/first", "/second"):  # two clusters, one after the other, on other ports
            with web.serving(echo) as url:
                Lab(home).note("cluster", {"dashboard": url})
                assert get(page).text == f"{page} Bearer abc"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("page", ["security.md", "setups/README.md"])
def test_each_claim_of_a_page_names_a_test_that_exists(page):
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text())
    assert len(named) > 10
    assert [name for name in named if f"def {name}(" not in tests] == []
