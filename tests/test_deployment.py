"""The files that start the lab elsewhere: accepted by their schemas, with tested versions and no secret."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "clusters"
FILES = sorted(path for path in FOLDER.iterdir() if path.name != "README.md")
SETUPS = sorted((ROOT / "docs" / "setups").iterdir())
PINS = dict(re.findall(r"(?m)^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text()))


SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ".github/ISSUE_TEMPLATE/lesson.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/problem.yml": "github-issue-forms",
    ".github/workflows/ci.yml": "github-workflows",
    ".github/workflows/pages.yml": "github-workflows",
    "docs/clusters/compose.yaml": "compose-spec",
    "docs/setups/compose.yaml": "compose-spec",
}


@pytest.mark.parametrize("path, schema", SCHEMAS.items(), ids=SCHEMAS)
def test_its_own_schema_accepts_it(path, schema):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def containers(resource):
    """Pod specs of a RayCluster or RayJob, the head's first."""
    spec = resource["spec"].get("rayClusterSpec", resource["spec"])
    return [group["template"]["spec"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


@pytest.mark.parametrize("name", ["aws", "gcp", "onprem"])
def test_ray_accepts_the_launcher_files(name, monkeypatch):
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(ROOT)  # file_mounts name paths from there
    config = yaml.safe_load((FOLDER / f"ray-up-{name}.yaml").read_text())
    validate_config(prepare_config(config))
    for here in config["file_mounts"].values():
        assert here.startswith("~") or (ROOT / here).exists()
    starts = [line for line in config["head_start_ray_commands"] if "--head" in line]
    assert "--dashboard-host=127.0.0.1" in starts[0]


@pytest.mark.parametrize("name", ["kuberay-cluster", "kuberay-job"])
def test_kuberay_files_name_the_tested_ray_a_token_and_a_user_who_is_not_root(name):
    resource = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    spec = resource["spec"].get("rayClusterSpec", resource["spec"])
    assert spec["rayVersion"] == PINS["ray"]
    assert spec["authOptions"] == {"mode": "token"}
    for pod in containers(resource):
        assert pod["securityContext"]["runAsNonRoot"]
        for container in pod["containers"]:
            assert container["resources"]["limits"] == container["resources"]["requests"]


def test_compose_refuses_to_start_without_a_token_and_opens_its_dashboard_here_alone():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for name in ("head", "worker"):
        assert services[name]["environment"]["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
        assert services[name]["user"] == "ray"
    assert services["head"]["ports"] == ["127.0.0.1:8265:8265"]


def test_the_batch_script_is_one_that_bash_reads():
    subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], check=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_token_mode_is_on_the_job_exists_and_there_is_an_end(path):
    text = path.read_text()
    assert "RAY_AUTH_MODE" in text or "authOptions" in text
    for job in re.findall(r"notebooks/plain/(\w+\.py)", text):
        assert (ROOT / "notebooks" / "plain" / job).exists()
    assert path.name == "Dockerfile" or "teardown" in text


@pytest.mark.parametrize("path", [*FILES, *SETUPS], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_no_secret_stands_in_a_file(path):
    for value in re.findall(
        r"(?i)(?:token|secret\w*|password|access_key\w*)\s*[:=]\s*['\"]?([\w/+=-]{16,})", path.read_text()
    ):
        pytest.fail(f"{value!r} looks like a secret")


def test_every_file_stands_in_the_guide():
    guide = (FOLDER / "README.md").read_text()
    assert [path.name for path in FILES if f"]({path.name})" not in guide and path.name != "Dockerfile"] == []


def test_each_claim_of_the_security_page_names_a_test_that_exists():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text())
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []
