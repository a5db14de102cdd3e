"""How large the code is to read, printed by `make lint`; it's a figure to look at, and no limit.

    .venv/bin/python tools/size.py [FOLDER …]

Tokens are Python's own, without comments, docstrings, blank lines and indentation. A code line has at least
one. Vague are names that fit everything, such as `found`.
"""

import ast
import io
import sys
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("labkit", "labkit/local", "course", "tests", "tools", "benchmarks")
VAGUE = {"one", "found", "given", "told", "said", "known"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


@dataclass
class Size:
    """The sum over some files."""

    tokens: int = 0
    lines: int = 0
    vague: int = 0
    public: set[str] = field(default_factory=set)  # names in the `__all__` of packages

    def add(self, path: Path) -> None:
        """Count one file."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        docstrings = _docstrings(tree)
        lines = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _LAYOUT or token.start in docstrings:
                continue
            self.tokens += 1
            self.vague += token.type == tokenize.NAME and token.string in VAGUE
            lines.update(range(token.start[0], token.end[0] + 1))
        self.lines += len(lines)
        if path.name == "__init__.py":
            self.public.update(f"{path.parent.name}.{name}" for name in _public(tree))


def _docstrings(tree: ast.AST) -> set[tuple[int, int]]:
    places = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            places.add((node.body[0].lineno, node.body[0].col_offset))
    return places


def _public(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def size_of(folder: Path) -> Size:
    """Return the size of all Python files below a folder."""
    size = Size()
    for path in sorted(folder.rglob("*.py")):
        size.add(path)
    return size


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        size = size_of(ROOT / name)
        ratio = size.tokens / max(size.lines, 1)
        figures = f"{size.tokens:7,} tokens, {ratio:4.1f} a line, {size.vague:3} vague names"
        print(f"{name:12} {figures}, {len(size.public):2} public")


if __name__ == "__main__":
    main()
