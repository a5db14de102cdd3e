"""Machines for tests, without containers: namespaces of Linux on one bridge.

    with network(folder) as net:
        head, worker = net.machine("head"), net.machine("node-2")
        head.run("-m", "ray.scripts.scripts", "start", "--head")

A machine has an address, a host name, processes, a `/tmp` and a Python of its own. That Python has ray, torch
and what they require, and the machine sees neither this checkout nor the user's home: whatever the lab needs
there must come with the connection. `Network.notebook` runs a program of this checkout on a machine, as a
person would who has opened JupyterLab there.

All of it lives in one PID namespace, whose first process ends with the standard input that this process
holds: however this process ends, the kernel of Linux then kills every other process there, and takes back
the namespaces with their interfaces and mounts. Nothing of the host's network is touched.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from requirements import entries

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ("ray[default,data,train,tune]", "torch")  # on all machines
SUBNET, NAMES = "10.77.0", ("head", "node-2", "node-3", "laptop")

# The first process of the network. It reaps what it inherits, and ends when its standard input does.
_WORLD = """
ip link set lo up
ip link add br0 type bridge && ip link set br0 up
echo ready; read -r _
"""
# The first process of a machine: mounts, then the same. /mnt keeps what the next lines hide.
_MACHINE = """
set -e
hostname "$NAME"
if [ $$ = 1 ]; then echo "$PIDS" > /proc/sys/kernel/ns_last_pid; fi
mount -t tmpfs tmpfs /mnt
mkdir /mnt/packages /mnt/python /mnt/folder
mount --bind "$PACKAGES" /mnt/packages
mount --bind "$BASE" /mnt/python
mount --bind "$FOLDER" /mnt/folder
for hidden in $HIDDEN /tmp /dev/shm; do mount -t tmpfs tmpfs "$hidden"; done
mkdir -p "$BASE" "$FOLDER"
mount --bind /mnt/python "$BASE"
for kept in $KEPT; do mkdir "$FOLDER/$kept"; mount --bind "/mnt/folder/$kept" "$FOLDER/$kept"; done
mount --bind /mnt/folder/hosts /etc/hosts
ip link set lo up
echo ready; read -r _
"""


def is_possible() -> bool:
    """Whether this process may create namespaces, and has the commands for it."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    tried = "ip link add br0 type bridge && mount -t tmpfs tmpfs /mnt"
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", tried]
    return subprocess.run(command, capture_output=True).returncode == 0


class Machine:
    """One machine of a `Network`.

    Attributes:
        address: its IP address.
        pid: of its first process, as this process sees it.
        environment: the variables of everything that runs on it.
    """

    def __init__(self, net: "Network", name: str, address: str, environment: dict[str, str]) -> None:
        self._net, self.name, self.address, self.environment = net, name, address, environment
        self.pid = 0

    def run(self, *arguments: str, **variables: str) -> None:
        """Run the machine's Python with these arguments, which must succeed."""
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--pid", "--net", "--wd=/"]
        log = self._net.folder / f"{self.name}.log"
        with open(log, "ab") as output:
            done = subprocess.run(
                [*inside, str(self._net.python), *arguments],
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=120,
            )
        assert done.returncode == 0, log.read_text()


class Network:
    """Machines on one bridge; see `network`.

    Attributes:
        folder: of the test. Its `shared` is on all machines, as a network file system would be; `ray` is on
            the machine that was started with it.
    """

    def __init__(self, folder: Path, installed: Iterable[str]) -> None:
        self.folder, self.machines = folder, []
        self._processes: list[subprocess.Popen] = []
        self.python = _make_environment(folder / "env", installed)
        for name in ("shared", "ray", "user"):
            (folder / name).mkdir()
        lines = ["127.0.0.1 localhost"]
        lines += [f"{SUBNET}.{number} {name}" for number, name in enumerate(NAMES, 1)]
        (folder / "hosts").write_text("\n".join(lines) + "\n")
        self._world = self._hold(["unshare", *_new("net", "mount", "pid"), "bash", "-c", _WORLD], {})

    def machine(
        self, name: str, *, own_pids: bool = True, nat: bool = False, keeps: str = "", **environment: str
    ) -> Machine:
        """A machine that is on.

        Args:
            name: one of `NAMES`.
            nat: whether it takes itself for an address at which no other machine reaches it.
            own_pids: whether it counts its processes by itself, as a container does.
            keeps: further folders of `folder` that it has.
            environment: variables for what runs on it.
        """
        number = NAMES.index(name) + 1
        common = {"HOME": "/root", "PATH": os.defpath, "LANG": "C.UTF-8", "RAY_USAGE_STATS_ENABLED": "0"}
        machine = Machine(self, name, f"{SUBNET}.{number}", common | environment)
        hidden = {str(Path.home()), str(ROOT), *([sys.prefix] if sys.prefix != sys.base_prefix else [])}
        parents = tuple(f"{folder}/" for folder in hidden)
        variables = {
            "NAME": name,
            "PIDS": str(10_000 * number),  # which no other machine in the network has
            "PACKAGES": sysconfig.get_path("purelib"),
            "BASE": sys.base_prefix,
            "FOLDER": str(self.folder),
            # A folder within a hidden one is hidden with it; a second mount there would fail.
            "HIDDEN": " ".join(sorted(folder for folder in hidden if not folder.startswith(parents))),
            "KEPT": f"env shared {keeps}",
        }
        new = ("net", "mount", "uts", *(["pid"] if own_pids else []))
        inside = ["nsenter", f"--target={self._world}", "--mount", "--pid"]
        machine.pid = self._hold([*inside, "unshare", *_new(*new), "bash", "-c", _MACHINE], variables)
        self._plug_in(machine, f"port{number}", nat=nat)
        self.machines.append(machine)
        return machine

    def notebook(self, machine: Machine, *command: str, **variables: str) -> subprocess.CompletedProcess:
        """Run a program of this checkout on a machine, with all files of this host."""
        world, there = f"/proc/{self._world}/ns", f"/proc/{machine.pid}/ns"
        inside = [f"--mount={world}/mnt", f"--pid={world}/pid", f"--net={there}/net", f"--uts={there}/uts"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "LABKIT_"))}
        environment |= {"HOME": str(self.folder / "user"), "LABKIT_HOME": str(self.folder / "home")}
        return subprocess.run(
            ["nsenter", *inside, "--wd=/", *command],
            env=environment | {"LABKIT_SMALL": "1", "PYTHONPATH": str(ROOT)} | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            timeout=300,
        )

    def close(self) -> None:
        for process in reversed(self._processes):  # the first one takes all others with it
            process.stdin.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def _hold(self, command: list[str], variables: dict[str, str]) -> int:
        """Start the first process of new namespaces. Returns its pid here, when it is ready."""
        environment = {"PATH": os.defpath + ":/usr/sbin:/sbin", **variables}
        held = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(held)
        assert held.stdout.readline() == "ready\n", held.stderr.read()
        return ([psutil.Process(held.pid), *psutil.Process(held.pid).children(recursive=True)])[-1].pid

    def _plug_in(self, machine: Machine, port: str, *, nat: bool) -> None:
        """Connect a machine to the bridge.

        Ray takes a machine's address from its default route. Behind `nat`, that one is known to the machine
        alone, and what it sends has another one.
        """
        bridge, there = (f"--net=/proc/{pid}/ns/net" for pid in (self._world, machine.pid))
        new = f"link add eth0 netns {machine.pid} type veth peer name {port}"
        inside = "192.168.77.1" if nat else machine.address
        for where, command in (
            (bridge, new),
            (bridge, f"link set {port} master br0 up"),
            (there, f"addr add {machine.address}/24 dev eth0"),
            (there, f"addr add {inside}/32 dev lo"),
            (there, "link set eth0 up"),
            (there, f"route add default dev eth0 src {inside}"),
        ):
            subprocess.run(["nsenter", where, "ip", *command.split()], check=True)


@contextlib.contextmanager
def network(folder: Path, *installed: str) -> Iterator[Network]:
    """A network, which is gone after the block with all that runs in it.

    Args:
        installed: packages on all machines, besides `INSTALLED`.
    """
    net = Network(folder, (*INSTALLED, *installed))
    try:
        yield net
    finally:
        net.close()


def _new(*kinds: str) -> list[str]:
    options = [f"--{kind}" for kind in kinds]
    return [*options, "--fork", "--kill-child", "--mount-proc"] if "pid" in kinds else options


def _make_environment(folder: Path, installed: Iterable[str]) -> Path:
    """A virtual environment of these packages, for machines: this one's are in /mnt/packages there."""
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(sys.base_prefix) / "bin"
    (folder / "bin" / "python").symlink_to(base / "python3")
    (folder / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    for entry in entries(installed):
        (packages / entry).symlink_to(f"/mnt/packages/{entry}")
    return folder / "bin" / "python"
