"""Where a run comes from: the code of its training loop and of what it calls, and the folder's commit."""

import ast
import contextlib
import functools
import inspect
import subprocess
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any


def source_of(code: Any) -> str:
    """The text of a function, a class or a frame; "" if Python doesn't have its text.

    Python reads the file of an imported function when it is asked, so it has what was saved last.
    """
    while isinstance(code, functools.partial):
        code = code.func
    # What is built in, typed at a prompt or an object has no text.
    with contextlib.suppress(OSError, TypeError, SyntaxError, StopIteration):
        return textwrap.dedent(_class_source(code) if inspect.isclass(code) else _source(code))
    return ""


def _source(code: Any) -> str:
    return inspect.getsource(inspect.unwrap(code))


def _class_source(kind: type) -> str:
    """Found through one of its methods: `inspect` looks for a notebook's class in a file, and finds none."""
    method = next(filter(inspect.isfunction, vars(kind).values()))
    text = "".join(inspect.findsource(method)[0])
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return ast.get_source_segment(text, next(node for node in classes if node.name == kind.__name__)) or ""


def called_by(code: Any) -> str:
    """The text of the functions and classes that a function, a class or a frame calls.

    Only those of its own notebook or file, and also what these call; each once, the deepest ones last.
    """
    found = [code]
    for here in found:  # which grows meanwhile
        while isinstance(here, functools.partial):
            here = here.func
        # A class has its module's names through its methods.
        for part in filter(inspect.isfunction, vars(here).values()) if inspect.isclass(here) else [here]:
            names = getattr(part, "f_globals", None) or getattr(part, "__globals__", {})
            inner = getattr(part, "f_code", None) or getattr(part, "__code__", None)
            for value in map(names.get, names_in(inner)):
                own = inspect.isfunction(value) or inspect.isclass(value)
                if own and value.__module__ == names.get("__name__") and value not in found:
                    found.append(value)
    whole = source_of(code)  # of a script, it has them already
    return "\n\n\n".join(text for text in (source_of(one).strip() for one in found[1:]) if text not in whole)


def names_in(code: CodeType | None) -> Iterator[str]:
    """The globals and attributes that some code names, and the functions within it."""
    if code is not None:
        yield from code.co_names
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                yield from names_in(inner)


def git_commit() -> str | None:
    """The commit that is checked out in the current folder; None without git or outside of a repository.

    Changes that are not committed are not noticed.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=5).strip()
    return None
