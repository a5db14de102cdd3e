"""Try the newest versions of what the lab is about, for `make next`: which tests and which names they break.

    make next                          install them into .venv-next, run everything, print what broke
    make next NEXT_ARGS="-m quick"     some tests only; pytest's options

It installs what pyproject.toml asks for, without the bounds for `MOVING` and without constraints.txt.
An environment that is less than a day old is used again. To start from nothing: rm -rf .venv-next
"""

import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
NEXT = ROOT / ".venv-next"
MOVING = (
    *("ray", "torch", "tensorflow", "keras", "tf-keras", "pyspark", "jupyterlab", "ipykernel", "ipywidgets"),
    *("jsonschema", "openapi-spec-validator"),
)
_SECONDS = 24 * 3600  # after which an environment is installed again


def requirements() -> list[str]:
    """List all requirements of pyproject.toml; those for `MOVING` without bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    required = [Requirement(line) for line in lines]
    for requirement in required:
        if canonicalize_name(requirement.name) in MOVING:
            requirement.specifier = type(requirement.specifier)()
    names = {requirement.name for requirement in required}
    return [*map(str, required), *(name for name in MOVING if name not in names)]


def install() -> None:
    stamp = NEXT / ".labkit-installed"  # the Makefile's, so that a test's `make lab` installs nothing
    if stamp.exists() and time.time() - stamp.stat().st_mtime < _SECONDS:
        return
    subprocess.run([sys.executable, "-m", "venv", NEXT], check=True)
    pip = [NEXT / "bin" / "python", "-m", "pip", "install", "--upgrade"]
    subprocess.run([*pip, "pip"], check=True)
    subprocess.run([*pip, "--upgrade-strategy", "eager", *requirements()], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", "."], cwd=ROOT, check=True)
    stamp.touch()


def test(runner: str, *args: str) -> list[tuple[str, str]]:
    """Run tests there, and return (name, text) of each that failed."""
    report = NEXT / "report.xml"
    report.unlink(missing_ok=True)
    command = [NEXT / "bin" / "python", "-m", runner, f"--junitxml={report}", *args]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "LABKIT_HOME": str(ROOT / ".labkit" / "next")})
    return failures(report) if report.exists() else [(" ".join([runner, *args]), "did not come to its end")]


def failures(report: Path) -> list[tuple[str, str]]:
    """(name, text) of each failed test in a report of pytest's (JUnit's XML)."""
    return [
        (f"{case.get('classname')}::{case.get('name')}", f"{problem.get('message')}\n{problem.text or ''}")
        for case in ElementTree.parse(report).iter("testcase")
        for problem in (*case.iterfind("failure"), *case.iterfind("error"))
    ]


def versions(lines: str) -> dict[str, str]:
    """Package → version, of lines such as ``ray==2.60.0``."""
    pairs = re.findall(r"(?m)^([\w.-]+)==([^+\s]+)", lines)
    return {canonicalize_name(name): version for name, version in pairs}


def table(failed: list[tuple[str, str]], pinned: dict[str, str], newest: dict[str, str]) -> str:
    """Format what `make next` prints: the versions that moved, those of `MOVING` first, and failed tests."""
    names = [*MOVING, *sorted((pinned.keys() | newest.keys()) - set(MOVING))]
    moved = [(name, pinned.get(name, "–"), newest.get(name, "–")) for name in names]
    lines = [f"{name} {old} → {new}" for name, old, new in moved if old != new]
    lines.append(f"\n{len(failed)} failed tests")
    return "\n".join(lines + [f"  {name}\n    {text.strip().partition(chr(10))[0]}" for name, text in failed])


if __name__ == "__main__":
    install()
    gone = test("pytest", "-q", "tests/test_private_names.py")
    rest = test("tests", *sys.argv[1:])
    subprocess.run([NEXT / "bin" / "python", "-m", "labkit", "stop"], cwd=ROOT)
    pip = [NEXT / "bin" / "python", "-m", "pip", "list", "--format=freeze", "--exclude-editable"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=True)
    failed = list(dict(gone + rest).items())  # private names are among the rest, too
    print(table(failed, versions((ROOT / "constraints.txt").read_text()), versions(listed.stdout)))
    sys.exit(1 if failed else 0)
