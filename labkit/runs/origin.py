"""Where a run comes from: the code of its training loop and of what it calls, and the folder's commit."""

import ast
import contextlib
import functools
import inspect
import re
import subprocess
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any

from labkit.display.formatting import without_credentials

SECRET = "(secret)"
# A text that is assigned or passed to a name like api_key, in any of Python's ways.
_SECRET_TEXT = re.compile(
    r"""((?<![^\W_])(?:key|token|secret|password|passwd|credential)s?\b["'\])]*\s*(?::\s*\w+\s*)?[=:,]\s*\w?)"""
    r"""(["'])(?:(?!\2).)+\2""",
    re.IGNORECASE,
)


def source_of(code: Any) -> str:
    """The text of a function, a class or a frame, without secrets; "" if Python doesn't have its text.

    Python reads the file of an imported function when it is asked, so it has what was saved last.
    """
    while isinstance(code, functools.partial):
        code = code.func
    # What is built in, typed at a prompt or an object has no text.
    with contextlib.suppress(OSError, TypeError, SyntaxError, StopIteration):
        text = _source_of_class(code) if inspect.isclass(code) else inspect.getsource(inspect.unwrap(code))
        text = textwrap.dedent(text)
        return _SECRET_TEXT.sub(rf"\1\2{SECRET}\2", without_credentials(text))
    return ""


def _source_of_class(kind: type) -> str:
    """Found through one of its methods: `inspect` looks for a notebook's class in a file, and finds none."""
    method = next(filter(inspect.isfunction, vars(kind).values()))
    text = "".join(inspect.findsource(method)[0])
    classes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    return ast.get_source_segment(text, next(node for node in classes if node.name == kind.__name__)) or ""


def called_by(code: Any) -> str:
    """The text of the functions and classes that a function, a class or a frame calls, without secrets.

    Only those of its own notebook or file, and also what these call; each once, the deepest ones last.
    """
    found: dict[str, Any] = {}
    queue = [code]
    while queue:
        here = queue.pop(0)
        while isinstance(here, functools.partial):
            here = here.func
        # A class has its module's names through its methods.
        parts = [*filter(inspect.isfunction, vars(here).values())] if inspect.isclass(here) else [here]
        for part in parts:
            names = getattr(part, "f_globals", None) or getattr(part, "__globals__", {})
            for name in names_in(getattr(part, "f_code", None) or getattr(part, "__code__", None)):
                value = names.get(name)
                own = inspect.isfunction(value) or inspect.isclass(value)
                if own and value.__module__ == names.get("__name__") and value not in (code, *found.values()):
                    found[name] = value
                    queue.append(value)
    whole = source_of(code)  # of a script, it has them already
    texts = (source_of(value).strip() for value in found.values())
    return "\n\n\n".join(text for text in texts if text not in whole)


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
