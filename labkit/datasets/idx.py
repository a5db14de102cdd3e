"""Read IDX, the file format of MNIST, from a file that nobody has to trust.

An IDX file is a header and the numbers: two zero bytes, one byte for the type, one for the number of
dimensions, each dimension as a big-endian 32-bit number, then the values in C order. Files usually
come compressed by gzip. http://yann.lecun.com/exdb/mnist/ describes the format.

What the header promises is checked against a limit, against the size of the file and against what
really comes, before memory is taken for it: a few bytes can promise (or decompress to) terabytes.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from labkit.errors import DatasetError

MOST_BYTES = 1 << 30  # of values in one file; MNIST's training images are 47 MB
_UNSIGNED_BYTE = 0x08
_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BEST = 1032  # deflate cannot turn one byte into more than this many


def read_idx(path: Path, *, shape: tuple[int | None, ...]) -> np.ndarray:
    """The values of an IDX file of unsigned bytes, plain or compressed by gzip.

    Args:
        path: the file.
        shape: the shape that is expected; None stands for any length: ``(None, 28, 28)``.

    Returns:
        uint8 array of the shape that the header gives, writable.

    Raises:
        DatasetError: the file cannot be read, or is not such a file, whole.
    """
    path = Path(path)
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            most = path.stat().st_size * (_GZIP_BEST if packed else 1)
            with gzip.GzipFile(fileobj=raw) if packed else raw as stream:
                return _read(stream, shape, most)
    except _Wrong as wrong:
        fact = str(wrong)
    except EOFError:
        fact = "its compressed data end too early"
    except (zlib.error, gzip.BadGzipFile) as error:
        fact = f"its compressed data are damaged ({error})"
    except OSError as error:
        fact = error.strerror or str(error)
    raise DatasetError(f"read {path.name}", fact, f"remove {path} and load the data set again")


class _Wrong(Exception):
    """What is wrong with the file."""


def _read(stream: BinaryIO, shape: tuple[int | None, ...], most: int) -> np.ndarray:
    found = _header(stream)
    fits = len(found) == len(shape) and all(map(lambda want, have: want in (None, have), shape, found))
    if not fits:
        raise _Wrong(f"its header gives the shape {_words(found)}, and {_words(shape)} was expected")
    size = math.prod(found)
    if size > MOST_BYTES:
        raise _Wrong(f"its header promises {size:,} bytes, and more than {MOST_BYTES:,} are never read")
    if size > most:
        raise _Wrong(f"its header promises {size:,} bytes, more than a file of this size can hold")
    values = np.empty(size, np.uint8)
    have = _fill(stream, values)
    if have < size:
        raise _Wrong(f"it ends after {have:,} of the {size:,} bytes that its header promises")
    if stream.read(1):
        raise _Wrong(f"it goes on after the {size:,} bytes that its header promises")
    return values.reshape(found)


def _header(stream: BinaryIO) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4:
        raise _Wrong(f"it has {len(magic)} bytes, less than a header")
    zero, kind, dimensions = struct.unpack(">HBB", magic)
    if zero or not (kind == _UNSIGNED_BYTE or kind in _TYPES) or not dimensions:
        raise _Wrong(f"it starts with {magic!r}, so it is no IDX file")
    if kind != _UNSIGNED_BYTE:
        raise _Wrong(f"it holds {_TYPES[kind]} values, and images and labels are unsigned bytes")
    lengths = stream.read(4 * dimensions)
    if len(lengths) < 4 * dimensions:
        raise _Wrong("it ends within its header")
    return struct.unpack(f">{dimensions}I", lengths)


def _fill(stream: BinaryIO, values: np.ndarray) -> int:
    """Read into `values` until it is full or the stream ends; the number of bytes that came."""
    view, have = memoryview(values), 0
    while have < len(view) and (more := stream.readinto(view[have:])):
        have += more
    return have


def _words(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("n" if length is None else str(length) for length in shape) + "]"
