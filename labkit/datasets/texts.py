"""Texts of your own: for a language model, or a class for each text.

>>> datasets.from_text("plays.txt", length=64)
<plays: rows of 64 tokens out of 256, language>
>>> datasets.from_text("reviews.csv", length=64, target="stars")
<reviews: rows of 64 tokens out of 256, classification, 5 classes>
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.datasets.own import Batch, OwnData
from labkit.datasets.tables import Frames, codes_of, examine, files_of, frames_of, in_order, name_of, only
from labkit.errors import DatasetError

_ROWS = 512  # in memory at once
_CHUNK = 1 << 20  # characters that are read at once


def from_text(
    source: str | Path | Sequence[str | Path] | Frames,
    *,
    length: int,
    target: str | None = None,
    column: str = "text",
    tokenizer: Any = None,
    test: float = 0.2,
    seed: int = 0,
) -> OwnData:
    """Text as tokens: whole files for a language model, or a column of a table with a class for each text.

    Args:
        source: text files in UTF-8 or, with `target`, CSV or Parquet files; one, a list, or a folder.
        length: tokens per row. A shorter text of a table is filled up with token 0, a longer one is cut.
        target: the column with the classes.
        column: the column with the texts.
        tokenizer: a ``tokenizers.Tokenizer``; default: each byte of the text is a token, 256 in all.
        test, seed: as in `OwnData`.

    Raises:
        DatasetError: a file or column is missing, is not UTF-8, or has fewer tokens than one row.
    """
    name = name_of(source, (".csv", ".parquet") if target else (".txt",))
    attempt = f"load the text {name}"
    if not isinstance(length, int) or length < 1:
        raise DatasetError(attempt, f"length is {length!r}", "pass the number of tokens per row, from 1 on")
    if tokenizer is not None and not hasattr(tokenizer, "get_vocab_size"):
        fact, fix = (
            f"the tokenizer is {tokenizer!r:.60}",
            "pass a tokenizers.Tokenizer, or leave it out for bytes",
        )
        raise DatasetError(attempt, fact, fix)

    def tokens(text: str) -> np.ndarray:
        if tokenizer is None:
            return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return np.asarray(tokenizer.encode(text).ids, np.int64)

    def decoded(row: np.ndarray) -> str:
        if tokenizer is None:
            return row.astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")
        return tokenizer.decode(row.tolist())

    def pieces() -> Iterator[str]:
        if isinstance(source, Frames):
            for where, frame in frames_of(source, attempt):
                yield "".join(f"{text}\n" for text in only(frame, [column], where, attempt)[column])
            return
        for file in files_of(source, (".txt",)):
            with open(file, encoding="utf-8") as stream:
                try:
                    while text := stream.read(_CHUNK):
                        yield text
                except UnicodeDecodeError as error:
                    fix = "save it as UTF-8, or remove the file"
                    raise DatasetError(attempt, f"{file} is not UTF-8: {error}", fix) from None

    def lines() -> Iterator[Batch]:
        rest = np.empty(0, np.int64)
        for text in pieces():
            rest = np.concatenate([rest, tokens(text)])
            rows = (len(rest) - 1) // length
            for begin in range(0, rows, _ROWS):
                some = rest[begin * length : min(begin + _ROWS, rows) * length + 1]
                yield some[:-1].reshape(-1, length), some[1:].reshape(-1, length)
            rest = rest[rows * length :]

    def labelled() -> Iterator[Batch]:
        for _, frame in frames_of(source, attempt):
            x = np.zeros((len(frame), length), np.int64)
            for row, text in enumerate(frame[column]):
                one = tokens(str(text))[:length]
                x[row, : len(one)] = one
            yield x, codes_of(frame[target], classes)

    classes = []
    if target:
        chosen = (
            (where, only(frame, [column, target], where, attempt))
            for where, frame in frames_of(source, attempt)
        )
        classes = in_order(examine(chosen, target, {column, target}, attempt, free=column)[target].values)
    own = OwnData(
        name=name, kind="tokens", task="classification" if target else "language",
        classes=tuple(classes), vocabulary=256 if tokenizer is None else tokenizer.get_vocab_size(),
        test=test, seed=seed, read=labelled if target else lines, text=decoded,
    )  # fmt: skip
    if next(iter(own.read()), None) is None:
        raise DatasetError(
            attempt, f"it has no row of {length} tokens", "pass a smaller length, or more text"
        )
    return own
