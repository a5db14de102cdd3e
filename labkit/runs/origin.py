"""Where a run comes from: the code of its training loop, and the commit of the folder."""

import ast
import contextlib
import functools
import inspect
import subprocess
import textwrap
from typing import Any


def source_of(code: Any) -> str:
    """The text of a function, a class or a frame; "" if Python doesn't have its text.

    Python reads the file of an imported function when it is asked, so it has what was saved last.
    """
    while isinstance(code, functools.partial):
        code = code.func
    # What is built in, typed at a prompt or an object has no text.
    with contextlib.suppress(OSError, TypeError, SyntaxError, StopIteration):
        text = _class_source(code) if inspect.isclass(code) else inspect.getsource(inspect.unwrap(code))
        return textwrap.dedent(text)
    return ""


def _class_source(kind: type) -> str:
    """Found through one of its methods: `inspect` looks for a notebook's class in a file, and finds none."""
    method = next(filter(inspect.isfunction, vars(kind).values()))
    text = "".join(inspect.findsource(method)[0])
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return ast.get_source_segment(text, next(node for node in classes if node.name == kind.__name__)) or ""


def git_commit() -> str | None:
    """The commit that is checked out here, without later changes; None outside of a repository."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=5).strip()
    return None
