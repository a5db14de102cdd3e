"""Where a run comes from: the code of its training loop, and the commit of the folder it was started in."""

import ast
import contextlib
import functools
import inspect
import re
import textwrap
from pathlib import Path
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


def git_commit() -> str | None:
    """The commit that is checked out in the current folder; None outside of a repository.

    It reads git's files and starts no process. Changes that are not committed are not noticed.
    """
    with contextlib.suppress(OSError, ValueError, StopIteration):
        here = Path.cwd()
        git = next(path / ".git" for path in (here, *here.parents) if (path / ".git").exists())
        if git.is_file():  # a worktree or a submodule: the file names the folder
            git = git.parent / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        if (git / "commondir").exists():
            git = git / (git / "commondir").read_text().strip()
        if (git / branch).exists():
            return (git / branch).read_text().strip()
        packed = (git / "packed-refs").read_text().splitlines()
        return next(line.split()[0] for line in packed if line.endswith(f" {branch}"))
    return None
