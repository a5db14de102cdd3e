"""What workers of a kept cluster would have if this process had started it: its variables and its folder.

A cluster outlives its kernel, and its workers inherit the environment of its nodes: that of the kernel
before. With `ray.init()`, a restarted kernel's workers have what it has set now, so `labkit.cluster` gives
the workers of its connection what differs:

- variables, removed ones too, and the working folder: by the runtime environment of the connection;
- secrets, and what Ray would change on the way: only from process to process, to forked workers. Ray writes
  a runtime environment into logs and command lines;
- what the nodes themselves read when they start is only named: it takes a new cluster.
"""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from labkit import machine
from labkit.cluster import connection
from labkit.local import family
from labkit.local.supervisor import KEEP
from labkit.settings import NODE_NAME

REMOVED = "labkit:removed"  # the value of a variable that `Changes.command` removes

# Of one process or terminal; nothing that a library reads.
_ITS_OWN = re.compile(
    r"_|PWD|OLDPWD|SHLVL|PS\d|COLUMNS|LINES|TERM.*|COLORTERM|LS_COLORS|WINDOW.*|DISPLAY|TMUX.*|STY|SSH_.*|XDG_.*"
    r"|DBUS_.*|INVOCATION_ID|JOURNAL_STREAM|JPY_.*|KERNEL_.*|IPYKERNEL.*|PYDEVD.*|VSCODE_.*|PYTEST_.*|PAGER"
    r"|GIT_PAGER|CLICOLOR.*|FORCE_COLOR"
)
_OF_THE_LAB_OR_RAY = {
    # Set by the lab, for all or for a node.
    family.MARK, NODE_NAME, KEEP, *connection.ENVIRONMENT, *connection.FORKED,
    "RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S",
    # Set by `ray start` for a node, or by `ray.init` for a driver.
    "LD_PRELOAD", "RAY_LD_PRELOAD_ON_WORKERS", "PYTHONBREAKPOINT", "SPT_NOENV", "RAY_CLIENT_MODE",
    "RAY_JOB_ID", "RAY_RAYLET_PID",
}  # fmt: skip
_OF_NODES = re.compile(r"RAY_[a-z].*")  # Ray's own configuration, which its processes read when they start
_SECRET = re.compile(
    r"(^|_)\w*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(_|$)"
    r"|(^|_)(PASS|PWD|PAT|AUTH|COOKIE|JWT|DSN|SAS)(_|$)",
    re.IGNORECASE,
)
_LOGIN_IN_AN_ADDRESS = re.compile(r"://[^/\s]*@")


@dataclass(frozen=True)
class Changes:
    """The differences between this process and the nodes of a cluster."""

    added: Mapping[str, str] = field(default_factory=dict)
    handed: Mapping[str, str] = field(default_factory=dict, repr=False)  # from process to process only
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # that only a new cluster would have
    folders: tuple[str, str] | None = None  # of the nodes, and of this process

    @property
    def variables(self) -> dict[str, str]:
        """The variables that workers have from this process, removed ones too."""
        return {**self.env_vars, **self.handed}

    def applied_to(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment that a worker has, of a node with `environment`."""
        stays = {name: value for name, value in environment.items() if name not in self.removed}
        return {**stays, **self.added, **self.handed}

    @property
    def env_vars(self) -> dict[str, str]:
        """The variables of a runtime environment, which can't remove any: `command` does that.

        A task's or actor's own runtime environment comes later, and counts more.
        """
        return {**self.added, **dict.fromkeys(self.removed, REMOVED)}

    def command(self, python: str | None) -> str | None:
        """Return a command for ``py_executable`` that runs `python`, a command as well, after the changes."""
        steps = [f'[ "${name}" = {REMOVED} ] && unset {name}' for name in self.removed]
        if self.folders:
            before, now = map(shlex.quote, self.folders)
            steps.append(f'[ "$(pwd -P)" = {before} ] && cd {now} 2>/dev/null')
        if not steps:
            return python
        script = "; ".join([*steps, 'exec "$@"'])
        return f"/bin/sh -c {shlex.quote(script)} sh {python or shlex.quote(sys.executable)}"


def changes(here: Mapping[str, str], nodes: Iterable[psutil.Process], *, forked: bool) -> Changes:
    """Compare this process's variables with those of the processes that start the workers (raylets).

    Args:
        here: this process's variables, as it would give them to a node.
        nodes: the raylets.
        forked: whether workers are forked, and so get what is handed from process to process.
    """
    environments, folders = [], []
    for node in nodes:
        with contextlib.suppress(psutil.Error, OSError):
            environments.append(node.environ())
            folders.append(node.cwd())
    added = {}
    handed = {}
    removed = []
    kept = []
    for name in sorted({*here}.union(*environments)):
        value = here.get(name)
        if name in _OF_THE_LAB_OR_RAY or _ITS_OWN.fullmatch(name):
            continue
        if all(there.get(name) == value for there in environments):
            continue
        if _OF_NODES.fullmatch(name) or (name == "CUDA_VISIBLE_DEVICES" and machine.gpus()):
            kept.append(name)
        elif value is None:
            if name.isidentifier():  # a shell can't unset others, such as its own functions
                removed.append(name)
        elif not _is_secret(name, value):
            added[name] = value
        elif forked:
            handed[name] = value
        else:
            kept.append(name)
    return Changes(added, handed, tuple(removed), tuple(kept), _other_folder(folders))


def _is_secret(name: str, value: str) -> bool:
    """Return whether Ray must not write it down, or would change it: it replaces ``$NAME``, wants UTF-8."""
    if "$" in value or not value.isascii():
        return True
    return bool(_SECRET.search(name) or _LOGIN_IN_AN_ADDRESS.search(value))


def _other_folder(folders: list[str]) -> tuple[str, str] | None:
    """Return the folder of the nodes and that of this process, if they differ."""
    here = os.path.realpath(os.getcwd())
    before = folders[0] if folders else here
    if not os.path.isdir(before):
        before = "/"  # where workers go whose folder is gone
    return (before, here) if before != here else None
