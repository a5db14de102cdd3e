"""What a class gets: the lessons without solutions, and the same with everything that installs them offline.

    python tools/bundle.py --learners   build/lab-learners.zip: the lessons, the package, the data
    python tools/bundle.py              build/bundle/lab-….tar: the same, all wheels and start.sh
    python tools/bundle.py --site       with build/site; its pages show the solutions, folded

The wheels are for this machine's system and Python. pip keeps them in build/wheels, so a second bundle
downloads what has changed and nothing else.
"""

import argparse
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

import build
import install
from labkit.errors import LabError

ROOT = Path(__file__).resolve().parent.parent
# Solutions, answers for the teacher, and what only those need who change the lab. The sources of the lessons
# have the solutions, too, and stay here as well; the checks of the exercises are next to them.
_KEPT_BACK = (
    "AGENTS.md",
    "notebooks/solutions/",
    "docs/teaching/",
    "docs/examples/",
    "tests/",
    "conftest.py",
    ".github/",
    ".ci/",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the archives for a class.")
    parser.add_argument("--learners", action="store_true", help="the zip of the lessons alone")
    parser.add_argument("--site", action="store_true", help="with build/site, which shows the solutions")
    options = parser.parse_args()
    try:
        if options.learners:
            made = learners(ROOT / "build" / "lab-learners.zip")
        else:
            wheels = download(ROOT / "build" / "wheels")
            site = ROOT / "build" / "site" if options.site else None
            made = bundle(ROOT / "build" / "bundle", wheels, site)
    except LabError as error:
        sys.exit(str(error))
    print(f"{made.relative_to(ROOT)}: {made.stat().st_size / 1e6:,.0f} MB")


def files() -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, path) for each file for learners: git's, without what is kept back.

    Raises:
        LabError: a notebook isn't what its source says, or has outputs: it may have answers in it.
    """
    for source, target, built in build.lessons():
        if not target.exists() or target.read_text(encoding="utf-8") != nbformat.writes(built) + "\n":
            fact = f"notebooks/{target.name} has outputs or differs from lessons/{source.name}"
            raise LabError("pack the lessons", fact, "python tools/build.py (it keeps what you wrote)")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        source = name.startswith("lessons/") and not name.startswith("lessons/checks/")
        if name and not source and not name.startswith(_KEPT_BACK):
            yield name, ROOT / name
    # An assistant that is opened at the top learns there how to help a learner.
    yield "AGENTS.md", ROOT / "notebooks" / "AGENTS.md"


def learners(target: Path) -> Path:
    """Write the zip of the lessons without solutions; `make lab` in it installs from the network."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files():
            archive.write(path, f"lab/{name}")
    return target


def download(folder: Path) -> Path:
    """Fetch or build the wheels that the lessons need, at the pinned versions, into `folder`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = project["project"]["dependencies"] + sum((extras[name] for name in extras if name != "dev"), [])
    fresh = folder.with_name("wheels.part")
    shutil.rmtree(fresh, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(ROOT / "constraints.txt"), "--find-links", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    calls = [[*command, "--wheel-dir", str(fresh), *wanted, *project["build-system"]["requires"]]]
    index = install.cpu_index(os.environ)
    if index is not None:
        # The second call finds this wheel in the folder, and prefers it: 2.13.0+cpu is later than 2.13.0.
        calls.insert(0, [*command, "--wheel-dir", str(folder), *install.torch_from(index)])
    for call in calls:
        if subprocess.run(call, stdout=sys.stderr).returncode:
            raise LabError("download the wheels", "pip failed, see above", "check the network, and try again")
    shutil.rmtree(folder)
    fresh.rename(folder)
    return folder


def bundle(folder: Path, wheels: Path, site: Path | None = None) -> Path:
    """Write the archive and its checksum into `folder`; return the archive's path.

    Raises:
        LabError: the site was asked for and isn't built.
    """
    if site and not site.is_dir():
        raise LabError("bundle the site", f"there is no {site}", "make test, then make site")
    contents = dict(files())
    contents |= {f"wheels/{path.name}": path for path in sorted(wheels.glob("*.whl"))}
    if site:
        pages = (path for path in sorted(site.rglob("*")) if path.is_file())
        contents |= {f"site/{path.relative_to(site)}": path for path in pages}
    contents["start.sh"] = ROOT / "tools" / "start.sh"
    system = platform.uname()
    version = ".".join(platform.python_version_tuple()[:2])
    built_for = f"{system.system} {system.machine} {version}\n".encode()
    sums = [f"{_sha256(path)}  {name}\n" for name, path in contents.items()]
    sums.append(f"{hashlib.sha256(built_for).hexdigest()}  wheels/built-for\n")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"lab-{system.system}-{system.machine}-python{version}.tar".lower()
    partial = target.with_suffix(".part")
    with tarfile.open(partial, "w") as archive:  # wheels are compressed already
        for name, path in contents.items():
            archive.add(path, f"lab/{name}")
        for name, data in (("wheels/built-for", built_for), ("SHA256SUMS", "".join(sums).encode())):
            entry = tarfile.TarInfo(f"lab/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    os.replace(partial, target)
    target.with_suffix(".tar.sha256").write_text(f"{_sha256(target)}  {target.name}\n", encoding="utf-8")
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
