"""Find words that make the lab's prose hard to read: part of `make lint`.

    python tools/prose.py             all Markdown files, lessons, comments, docstrings and messages
    python tools/prose.py README.md   some files

The rules for prose are in CONTRIBUTING.md. A program cannot check most of them; this one finds words and
phrases for which there is always a plainer one. It looks at Markdown outside of code, and in Python files at
comments and strings. Text in `backticks` is code.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = "docs benchmarks course findings labkit lessons notebooks tests tools"

# What to look for, and what to write instead.
_PHRASES = {
    r"anew": "again, from the start",
    r"(?<!\bset )beside": "next to, alongside, during",
    r"mend(s|ed|ing)?": "fix, repair",
    r"for ever": "forever, without end",
    r"whoever": "the process, the client, the reader",
    r"nobody|somebody": "no process, a client, another user",
    r"(is|are|was|were|be|been) told": "is notified, receives, is set to",
    r"what travels": "what is pickled, what is sent",
    r"(hang|hangs|hung) on (?!to\b)": "depends on",
    r"(?<!long )(?<!soon )(?<!much )(as it is|as they are)": "unchanged",
    r"(come|comes|came) to nothing": "has no effect, fails",
    r"dear": "expensive",
    r"in its stead|in his stead": "instead of it",
    r"(at|of) leisure": "in the background",
    r"knock(s|ed|ing)?": "check, probe",
    r"(come|comes|came) about": "happens, succeeds",
    r"(begin|begins|began) again": "starts again, restarts",
    r"(?<!there )(is|are|was|were) to be": "should be, will be, must be",
    r"lie|lies|lay|lain": "is, are, was, were",
    r"(stands?|stood)(?! (still|idle|in for|for|alone|out)\b|-)": "is, appears",
    r"decimal numbers?": "floats",
    r"so many (seconds|times|rows|steps|milliseconds)": "a number, or its name",
    # patterns of a text that was thought in another language
    r"(a|each|every|one|another|any) training(?= (is|has|was|takes|took|that|which|with|on|of|by|in|and)\b"
    r"|[.,;:?!])": "a training run, a run, a job",
    r"trainings": "training runs, runs, jobs",
    r"another \w+ (gives|makes|gets|gave|made|got) another": "a different … gives a different …",
    r"(is|are|was|were|than|like) (that|those) of|the one of": "the noun again, or 's",
    r"how many times as (fast|long|much|many|large)": "what speed-up, by what factor",
    r"(step|head|rank|number|name|names|weights|rows|IPv6|model|kernel|node) alone": "only, before the noun",
    r"(?<!there )(is|are|was|were) no "
    r"(error|trainer|failure|number|image|list|table|cluster|model|text)": "isn't a",
    r"(stand|stands|stood|standing) still": "hangs, stalls",
    r"(it|they|which|workers|them|that) pays?(?= (off|where|when|if|only|here)\b|[.,;:])": "is worth it",
    r"you may leave": "you can skip",
    r"without end|the very (same|end|first|last|step|rows|number)": "forever; exactly, only",
    r"(went|goes|go) on where": "picks up where",
    r"workers? less": "one fewer",
    r"asks for no": "needs no",
}
_BANNED = {re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE): better for phrase, better in _PHRASES.items()}
_NAME = re.compile(r"^ +\w+: ")  # of an argument or attribute, in a docstring
_CODE = re.compile(r"``.*?``|`[^`]*`|https?://\S+|\]\([^)]*\)")


def main(names: list[str]) -> int:
    """Print each phrase with its place, and return the number of files that have to be changed."""
    paths = [Path(name).resolve() for name in names] or sorted(
        path
        for pattern in ("*.md", *(f"{folder}/**/*" for folder in _FOLDERS.split()))
        for path in ROOT.glob(pattern)
        if path.suffix in (".md", ".py")
    )
    bad = set()
    for path in paths:
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        for line, words, better in findings(path):
            print(f"{name}:{line}: {words!r}: write {better!r}, or another plain word")
            bad.add(name)
    return len(bad)


def findings(path: Path) -> list[tuple[int, str, str]]:
    """List (line, words, better) for each phrase of a file that should not be there."""
    if path == Path(__file__).resolve():
        return []
    text = path.read_text(encoding="utf-8")
    lines = _of_python(text) if path.suffix == ".py" else enumerate(text.splitlines(), start=1)
    return sorted(
        (number, match[0], better)
        for number, line in _without_code(lines)
        for pattern, better in _BANNED.items()
        for match in pattern.finditer(line)
    )


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments, docstrings and messages. In a lesson's source, prose is comments."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from enumerate(node.value.splitlines(), start=node.lineno)


def _without_code(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith(">>>"):
            yield number, _CODE.sub(" ", _NAME.sub("", line))


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
