"""Texts of your own: for a language model, or a class for each text.

>>> datasets.from_text("plays.txt", length=64)
<plays: 1,249 rows of 64 tokens out of 256, language>
>>> datasets.from_text("reviews.csv", length=64, target="stars")
<reviews: 800 rows of 64 tokens out of 256, classification, 5 classes>
"""

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets import tables
from labkit.datasets.own import OwnData, files_of, text_of
from labkit.errors import LabError, expect_int

if TYPE_CHECKING:
    import pandas

_PADS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "[pad]")


def from_text(
    source: Any,
    *,
    length: int,
    target: str | None = None,
    column: str = "text",
    tokenizer: Any = None,
    test: float = 0.2,
    seed: int = 0,
) -> OwnData:
    """Make rows of tokens: of whole texts for a language model, or one row for each text of a table.

    Args:
        source: text files in UTF-8, as a file, a folder or a list; or a table, as `from_table` reads it.
        length: tokens per row. Of a table with a `target`, a longer text is cut, and a shorter one is filled
            up with the tokenizer's padding token, or token 0.
        target: the column with the classes; without it, the rows are for a language model.
        column: the column with the texts.
        tokenizer: a ``tokenizers.Tokenizer``; default: each byte of the text is a token, 256 in all. It runs
            without truncation, padding and special tokens.
        test, seed: as in `OwnData`.
    """
    attempt = f"load the text {str(source)[:200] if isinstance(source, (str, Path)) else 'of a table'}"
    expect_int(attempt, "length", length)
    tokens = _Bytes() if tokenizer is None else _Tokens(tokenizer, attempt)
    about = {"kind": "tokens", "vocabulary": tokens.vocabulary, "text": tokens.text}
    about |= {"test": test, "seed": seed}
    if target is None:
        name, texts = _whole_texts(source, str(column), attempt)
        found = np.concatenate([tokens.of(text.replace("\r\n", "\n").replace("\r", "\n")) for text in texts])
        ends = (len(found) - 1) // length * length
        if ends < 1:
            fact = f"{len(found):,} tokens are fewer than a row of {length:,} and the one after it"
            raise LabError(attempt, fact, "pass a smaller length=, or more text")
        x, y = found[:ends].reshape(-1, length), found[1 : ends + 1].reshape(-1, length)
        return OwnData(name=name, task="language", x=x, y=y, **about)
    name, table = tables.read_table(source, attempt)
    texts = _column(table, str(column), attempt)
    goal = tables.cells_of(str(target), table, attempt)
    classes, y = tables.classes_of(str(target), goal, attempt)
    x = np.full((len(y), length), tokens.pad, np.int64)
    for row, text in zip(x, texts, strict=True):
        found = tokens.of(text)[:length]
        row[: len(found)] = found
    return OwnData(name=name, task="classification", classes=classes, x=x, y=y, **about)


def _whole_texts(source: Any, column: str, attempt: str) -> tuple[str, list[str]]:
    """The name and the texts of files, or the texts of a table as lines."""
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    if not isinstance(first, (str, Path)) or str(first).lower().endswith(tables.TABLES):
        name, table = tables.read_table(source, attempt)
        return name, [f"{text}\n" for text in _column(table, column, attempt)]
    suffixes = (".txt",) if os.path.isdir(os.path.expanduser(first)) else ("",)
    name, files = files_of(source, suffixes, attempt)
    return name, [text_of(file, attempt) for file in files]


def _column(table: "pandas.DataFrame", column: str, attempt: str) -> list[str]:
    """The column with the texts; none may be empty or something else."""
    tables.cells_of(column, table, attempt)  # refuses a column that isn't there
    texts = table[column].tolist()
    if others := [cell for cell in texts if not isinstance(cell, str)]:
        fact = f"{column!r} has cells of type {type(others[0]).__name__}, such as {others[0]!r:.40}"
        raise LabError(attempt, fact, "pass column= with the name of a column of texts")
    tables.refuse_empty(column, texts, attempt)
    return texts


class _Bytes:
    """Each byte is a token."""

    vocabulary, pad = 256, 0

    def of(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(errors="replace"), np.uint8).astype(np.int64)

    def text(self, row: np.ndarray) -> str:
        return row.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")


class _Tokens:
    """The tokens of a ``tokenizers.Tokenizer``, or of the one inside a tokenizer of transformers."""

    def __init__(self, tokenizer: Any, attempt: str) -> None:
        tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if isinstance(tokenizer, type) or not hasattr(tokenizer, "no_truncation"):
            fix = "pass tokenizers.Tokenizer.from_file('tokenizer.json'), or leave it out for bytes"
            raise LabError(attempt, f"the tokenizer is {tokenizer!r:.60}", fix)
        pads = filter(None, map(tokenizer.token_to_id, _PADS))
        self.pad = tokenizer.padding["pad_id"] if tokenizer.padding else next(pads, 0)
        self.vocabulary = max([self.pad, *tokenizer.get_vocab().values()]) + 1  # some have gaps
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.no_truncation()  # models that ship switch both on
        self._tokenizer.no_padding()

    def of(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def text(self, row: np.ndarray) -> str:
        return self._tokenizer.decode(row.tolist())
