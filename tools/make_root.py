"""Run a make target on another Debian, with the Python of that release: a root made by debootstrap.

    python tools/make_root.py trixie /tmp/trixie setup
    python tools/make_root.py forky /tmp/forky test TEST_ARGS="-m quick"
    python tools/make_root.py trixie /tmp/trixie lab LAB_ARGS="--no-browser --port 8890"

It needs Debian, root and debootstrap (``apt-get install debootstrap``). The root is kept and used again; the
commit at HEAD is cloned into its folder ``/lab``. The mirror is the one that this machine's apt has. pip's
configuration counts there, too, with the folders that ``--bind`` names.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("chromium", "g++", "git", "iproute2", "make", "procps", "python3", "python3-dev", "python3-venv")
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
# What a program expects to find, and how this machine reaches a network.
_BOUND = ("/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs")
_PIP = ("/etc/pip.conf", "/etc/xdg/pip")


def mirror() -> str:
    """Return the address from which this machine's apt gets Debian itself, without updates."""
    listed = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(SUITE) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    debian = [line.split()[-1] for line in lines if line.startswith("Debian ") and "security" not in line]
    if not debian:
        raise SystemExit(
            "could not find a mirror\n  because apt knows no source of Debian\n  fix: apt-get update"
        )
    return debian[0]


def bootstrap(suite: str, root: Path) -> None:
    """Make the root, unless it is there, and install what the lab needs into it."""
    if not (root / "usr" / "bin" / "make").exists():
        script = _SCRIPTS / suite
        if not script.exists():  # the suite may be younger than debootstrap
            script = _SCRIPTS / "sid"
        command = [
            "debootstrap",
            "--variant=minbase",
            "--include=ca-certificates",
            suite,
            str(root),
            mirror(),
        ]
        subprocess.run([*command, str(script)], check=True)
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
        if run(root, install):
            raise SystemExit(
                "could not make the root\n  because apt failed, see above\n  fix: remove it, and try again"
            )


def clone(root: Path) -> None:
    """Bring the commit at HEAD into ``/lab`` of the root; what git ignores there stays."""
    lab = root / "lab"
    if not lab.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(lab)], check=True)
    git = ["git", "-C", str(lab)]
    subprocess.run([*git, "fetch", "--quiet", str(ROOT), "HEAD"], check=True)
    subprocess.run([*git, "reset", "--quiet", "--hard", "FETCH_HEAD"], check=True)


def run(root: Path, command: list[str], bound: Sequence[str] = (), folder: str = "/") -> int:
    """Run `command` in a folder of the root, in a mount namespace of its own, so that no mount is left."""
    lines = []
    for path in (path for path in (*_BOUND, *_PIP, *bound) if os.path.exists(path)):
        target = root / path.removeprefix("/")
        if not target.exists() and Path(path).is_dir():
            target.mkdir(parents=True)
        elif not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        lines.append(shlex.join(["mount", "--bind", path, str(target)]))
    shell = f"cd {folder} && exec {shlex.join(command)}"
    lines.append(shlex.join(["exec", "chroot", str(root), "/bin/sh", "-c", shell]))
    # `make` tells its own children what it was called with; this one has no such parent.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))
    }
    environment |= {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(lines)]
    return subprocess.run(alone, env=environment).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a make target on another Debian.")
    parser.add_argument("suite", help="as in trixie")
    parser.add_argument("root", type=Path, help="the folder of the root; it takes about 8 GB")
    parser.add_argument("--bind", action="append", default=[], help="a folder of this machine to show there")
    options, target = parser.parse_known_args()
    begin = time.monotonic()
    bootstrap(options.suite, options.root.resolve())
    clone(options.root.resolve())
    made = time.monotonic()
    status = run(options.root.resolve(), ["make", *target], options.bind, "/lab")
    print(
        f"{options.suite}: {made - begin:.0f} s for the root, make {shlex.join(target)}: status {status}",
        end=" ",
    )
    print(f"after {time.monotonic() - made:.0f} s")
    sys.exit(status)


if __name__ == "__main__":
    main()
