"""Texts of your own: for a language model, or a class for each text.

>>> datasets.from_text("plays.txt", length=64)
<plays: 1,249 rows of 64 tokens out of 256, language>
>>> datasets.from_text("reviews.csv", length=64, target="stars")
<reviews: 800 rows of 64 tokens out of 256, classification, 5 classes>
"""

import copy
import functools
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.datasets.own import OwnData
from labkit.datasets.tables import (
    TABLES,
    classes_of,
    codes_of,
    files_of,
    read_table,
    refuse_empty,
    require,
    text_of,
)
from labkit.errors import LabError, expect_int

if TYPE_CHECKING:
    import pandas
    import pyarrow

_CHUNK = 1 << 20  # characters that a tokenizer gets at once, up to the end of a line
_PADS = ("[PAD]", "<pad>", "<|pad|>", "<PAD>", "[pad]")


def from_text(
    source: "str | Path | Sequence[str | Path] | pandas.DataFrame | pyarrow.Table",
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

    Raises:
        LabError: a file or column is missing, isn't UTF-8 or is empty, or there are too few tokens for a row.
    """
    attempt = f"load the text {str(source)[:200] if isinstance(source, (str, Path)) else 'of a table'}"
    expect_int(attempt, "length", length)
    encode, decode, vocabulary, pad = _tokens(tokenizer, attempt)
    options = {"kind": "tokens", "vocabulary": vocabulary, "test": test, "seed": seed, "text": decode}
    if target is None and not _is_table(source):
        folder = isinstance(source, (str, Path)) and Path(source).expanduser().is_dir()
        name, files = files_of(source, (".txt",) if folder else ("",), attempt)
        texts = [text_of(file, attempt) for file in files]
    else:
        name, table = read_table(source, attempt)
        require([str(column)] if target is None else [str(column), str(target)], table, attempt)
        texts = table[str(column)].tolist()
        if others := [cell for cell in texts if not isinstance(cell, str)]:
            fact = f"{column!r} has cells of type {type(others[0]).__name__}, such as {others[0]!r:.40}"
            raise LabError(attempt, fact, "pass column= with the name of a column of texts")
        refuse_empty(str(column), texts, attempt)
        texts = texts if target is not None else [f"{text}\n" for text in texts]
    if target is None:
        x, y = _next_tokens(encode, texts, length, attempt)
        return OwnData(name=name, task="language", x=x, y=y, **options)
    goal = table[str(target)].tolist()
    classes = classes_of(str(target), goal, attempt)
    x = np.full((len(goal), length), pad, np.int64)
    for row, text in zip(x, texts, strict=True):
        tokens = encode([text])[:length]
        row[: len(tokens)] = tokens
    y = codes_of(goal, classes)
    return OwnData(name=name, task="classification", classes=classes, x=x, y=y, **options)


def _is_table(source: Any) -> bool:
    """Whether it is a table, and not the text files of a language model."""
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    return not isinstance(first, (str, Path)) or str(first).lower().endswith(TABLES)


def _next_tokens(encode: Callable, texts: Iterable[str], length: int, attempt: str) -> tuple[np.ndarray, ...]:
    """x and y int64 [n, length] of one long text; y is a token ahead."""
    tokens = np.concatenate([encode(_chunks(text)) for text in texts])
    rows = (len(tokens) - 1) // length
    if rows < 1:
        fact = f"{len(tokens):,} tokens are fewer than a row of {length:,} and the one after it"
        raise LabError(attempt, fact, "pass a smaller length=, or more text")
    ends = rows * length
    return tokens[:ends].reshape(rows, length), tokens[1 : ends + 1].reshape(rows, length)


def _chunks(text: str) -> Iterator[str]:
    """The text in pieces that end with a line; "\\r\\n" and "\\r" become "\\n"."""
    stream = io.StringIO(text, newline=None)
    while lines := stream.readlines(_CHUNK):
        yield "".join(lines)


def _tokens(tokenizer: Any, attempt: str) -> tuple[Callable, Callable, int, int]:
    """encode(texts) -> int64 [n], decode(row) -> text, the vocabulary's size and the padding token."""
    if tokenizer is None:
        return _encode_bytes, _decode_bytes, 256, 0
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers
    if not hasattr(tokenizer, "no_truncation"):
        fix = "pass tokenizers.Tokenizer.from_file('tokenizer.json'), or leave it out for bytes"
        raise LabError(attempt, f"the tokenizer is {tokenizer!r:.60}", fix)
    pads = filter(None, map(tokenizer.token_to_id, _PADS))
    pad = tokenizer.padding["pad_id"] if tokenizer.padding else next(pads, 0)
    vocabulary = max([pad, *tokenizer.get_vocab().values()]) + 1  # some have gaps
    plain = copy.deepcopy(tokenizer)
    plain.no_truncation()  # models that ship switch both on
    plain.no_padding()
    return functools.partial(_encode, plain), functools.partial(_decode, plain), vocabulary, pad


def _encode(tokenizer: Any, texts: Iterable[str]) -> np.ndarray:
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return np.array(sum(ids, []), np.int64)


def _decode(tokenizer: Any, row: np.ndarray) -> str:
    return tokenizer.decode(row.tolist())


def _encode_bytes(texts: Iterable[str]) -> np.ndarray:
    return np.frombuffer("".join(texts).encode(errors="replace"), np.uint8).astype(np.int64)


def _decode_bytes(row: np.ndarray) -> str:
    return row.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")
