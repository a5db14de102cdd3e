"""The archives for a class: what is in them, that a bundle starts only if it's whole, and how it's copied."""

import os
import platform
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import nbformat
import pytest

import build
import bundle
import install
from labkit.errors import LabError
from labs import program

pytestmark = [pytest.mark.slow, pytest.mark.covers("datasets/", "tools/")]


# In place of Python: makes an environment whose Python notes what it is asked to do.
STAND_IN = """echo "$*" >> "$LOG"
case "$*" in
    "-c "*) echo "${SAYS:-%s}" ;;
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m labkit home") echo /their/home ;;
    "-m jupyterlab"*) echo "tabs $JUPYTERLAB_WORKSPACES_DIR" >> "$LOG" ;;
esac
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "wheels").mkdir()
    (folder / "wheels" / "one-1-py3-none-any.whl").write_bytes(b"a wheel")
    return bundle.bundle(folder, folder / "wheels")


@pytest.fixture
def lab(archive, tmp_path) -> Path:
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    return tmp_path / "lab"


@pytest.fixture
def start(lab, tmp_path):
    """start(option, …) of the unpacked bundle, with a stand-in for Python; (result, what it was asked)."""
    python, log = tmp_path / "python", tmp_path / "log"
    program(python, STAND_IN % ".".join(platform.python_version_tuple()[:2]))

    def _start(*options: str, **env: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        log.unlink(missing_ok=True)
        variables = {**os.environ, "PYTHON": str(python), "LOG": str(log), **env}
        command = [str(lab / "start.sh"), *options]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=800)
        return done, log.read_text().splitlines() if log.exists() else []

    return _start


def test_learners_get_all_lessons_and_no_solution(root, tmp_path, archive):
    with zipfile.ZipFile(bundle.learners(tmp_path / "learners.zip")) as file:
        zipped = {name.removeprefix("lab/") for name in file.namelist()}
    with tarfile.open(archive) as file:
        packed = {name.removeprefix("lab/") for name in file.getnames()}
    lessons = {f"notebooks/{path.stem}.ipynb" for path in (root / "lessons").glob("*.py")}
    checks = {f"lessons/checks/{path.name}" for path in (root / "lessons" / "checks").glob("*.py")}
    assert {*lessons, *checks, "datasets/digits.parquet", "pyproject.toml"} <= zipped & packed
    assert packed - zipped == {"SHA256SUMS", "start.sh", "wheels/built-for", "wheels/one-1-py3-none-any.whl"}
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert zipped <= {*tracked.splitlines()}  # neither keys nor tokens nor runs: these are in no commit
    for name in zipped | packed:
        assert name in checks or not name.startswith("lessons/"), name
        assert not name.startswith(("notebooks/solutions/", "docs/teaching/", "docs/examples/")), name
        assert not name.startswith("tests/"), name


def test_a_learners_assistant_is_told_how_to_help(root, lab):
    """It reads AGENTS.md where it was opened, at the top or in notebooks. Contributors have another one."""
    text = (root / "notebooks" / "AGENTS.md").read_text()
    assert (lab / "AGENTS.md").read_text() == (lab / "notebooks" / "AGENTS.md").read_text() == text
    for word in ("prediction", "hint", "`notebooks/solutions`", "`lessons`", "doctor"):
        assert word in text


def test_checksums_hold_for_the_archive_and_each_file(archive, lab):
    lines = (lab / "SHA256SUMS").read_text().splitlines()
    files = {str(path.relative_to(lab)) for path in lab.rglob("*") if path.is_file()}
    assert {line.split("  ", 1)[1] for line in lines} == files - {"SHA256SUMS"}
    for folder, sums in ((lab, "SHA256SUMS"), (archive.parent, f"{archive}.sha256")):
        subprocess.run(["sha256sum", "--check", "--quiet", sums], cwd=folder, check=True)


def test_start_installs_once_without_an_index_and_opens_the_first_lesson(start):
    done, asked = start("--no-browser")
    assert done.returncode == 0, done.stderr
    (install,) = (line for line in asked if line.startswith("-m pip install"))
    assert "--no-index --find-links wheels --constraint constraints.txt" in install
    assert install.endswith("--editable .[lessons,tensorflow,spark,recipes]")
    assert "tour.ipynb --no-browser" in asked[-2].replace(" --allow-root", "")
    assert asked[-1] == "tabs /their/home/workspaces"
    done, asked = start()
    assert asked and not any("pip" in line or "venv" in line for line in asked)


@pytest.mark.parametrize(
    ("spoil", "fact"),
    [
        ("python", "this is .* 3.9"),
        ("platform", "its wheels are for Plan9 mips 3.11"),
        ("damage", "damaged or missing: notebooks/00_welcome.ipynb: FAILED"),
        ("loss", "damaged or missing: wheels/one-1-py3-none-any.whl: FAILED"),
        ("nothing there", "there is no /nowhere/python"),
    ],
)
def test_start_says_what_is_wrong_and_installs_nothing(spoil, fact, start, lab):
    if spoil == "platform":
        (lab / "wheels" / "built-for").write_text("Plan9 mips 3.11\n")
    elif spoil == "damage":
        (lab / "notebooks" / "00_welcome.ipynb").write_text("{}")
    elif spoil == "loss":
        (lab / "wheels" / "one-1-py3-none-any.whl").unlink()
    env = {"python": {"SAYS": "3.9"}, "nothing there": {"PYTHON": "/nowhere/python"}}.get(spoil, {})
    done, asked = start(**env)
    assert done.returncode == 1
    assert re.search(f"could not start the lab: .*{fact}", done.stderr) and "  fix: " in done.stderr
    assert not any("venv" in line for line in asked)


def test_a_bundle_has_the_torch_that_make_setup_would_choose(tmp_path, monkeypatch):
    """PyPI's torch brings CUDA, which is several GB for each learner."""
    asked = []

    def pip(command, **_):
        asked.append(command)
        (tmp_path / "wheels.part").mkdir(exist_ok=True)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(install, "cpu_index", lambda variables: install.INDEX)
    assert bundle.download(tmp_path / "wheels") == tmp_path / "wheels"
    first, rest = asked
    assert first[-4:-1] == ["--no-deps", "--index-url", install.INDEX]
    assert first[first.index("--wheel-dir") + 1] == rest[rest.index("--find-links") + 1]


def test_a_notebook_that_was_worked_in_is_not_packed(tmp_path, monkeypatch):
    source, target, built = next(build.lessons())
    answered = tmp_path / target.name
    answered.write_text(nbformat.writes(built).replace("your answer", "42"))
    monkeypatch.setattr(build, "lessons", lambda: [(source, answered, built)])
    with pytest.raises(LabError, match=f"{target.name} has outputs or differs"):
        bundle.learners(tmp_path / "learners.zip")
