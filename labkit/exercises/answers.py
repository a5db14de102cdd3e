"""How a check looks at an answer: for those who write lessons.

    def two_batches(sizes):
        array_of(sizes, shape=(2,), what="the list of batch sizes")
        close_to(sizes[0], 64, mistakes={128: "that is the global batch"}, what="the first")

Each function says nothing where the answer is right, and raises `Wrong` where it is not: with what was
found, never with the solution. What else an answer makes a check raise (a string where a number is
wanted, a shape that does not fit) is told to the learner in the same calm way, so a check need not
foresee it. No check looks at seconds: machines differ.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy


# What this Python compiles functions to that only return None or `...`, with a docstring and without.
_STUBS = frozenset(
    next(filter(inspect.iscode, compile(source, "stub", "exec").co_consts)).co_code
    for source in ("def f(): ...", "def f(): 'x'", "def f(): return ...", "def f():\n 'x'\n return ...")
)


class Wrong(Exception):  # noqa: N818  a verdict and not a failure
    """An answer is not right; the text says what was found."""


class NotAttempted(Exception):  # noqa: N818
    """There is no answer yet: the `...` still stands."""


def is_blank(answer: Any) -> bool:
    """Whether `answer` is still to be given: ``...``, a function of only ``...``, or a list, tuple or dict
    with ``...`` in it."""
    if answer is ...:
        return True
    if isinstance(answer, Mapping):
        return any(item is ... for item in answer.values())
    if isinstance(answer, (list, tuple)):
        return any(item is ... for item in answer)
    return _is_stub(answer)


def shown(value: Any) -> str:
    """`value` in a few words, whatever it is: "'64' (a str)", "an array of shape (3, 28), uint8"."""
    kind = _a(type(value).__name__)
    try:
        if hasattr(value, "shape") and hasattr(value, "dtype") and tuple(value.shape):
            return f"{kind} of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
        if callable(value) and hasattr(value, "__name__"):
            return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
        text = " ".join(repr(value).split())
    except Exception:  # what a learner's object does is any code
        return kind
    text = text if len(text) <= 60 else text[:59] + "…"
    return text if isinstance(value, (int, float)) or value is None else f"{text} ({kind})"


def number(answer: Any, what: str = "your answer") -> int | float:
    """`answer` as a number; 0-d arrays and tensors are numbers, NaN and True are none.

    Raises:
        Wrong: it is none.
    """
    value = answer
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # numpy and torch
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Wrong(f"{what} is {shown(answer)}, and a number is wanted")
    if math.isnan(value):
        raise Wrong(f"{what} is NaN, not a number")
    return value


def close_to(
    answer: Any,
    expected: float,
    *,
    rel: float = 1e-6,
    abs: float = 1e-9,
    what: str = "your answer",
    mistakes: Mapping[float, str] | None = None,
) -> None:
    """The number `answer` is `expected`, up to the larger of the tolerances.

    Args:
        mistakes: what to say to numbers that are likely and wrong: ``{64: "that is what ONE worker sees"}``.

    Raises:
        Wrong: it is another one, or none.
    """
    value = number(answer, what)
    if math.isclose(value, expected, rel_tol=rel, abs_tol=abs):
        return
    for mistake, remark in (mistakes or {}).items():
        if math.isclose(value, mistake, rel_tol=rel, abs_tol=abs):
            raise Wrong(f"{what} is {shown(value)}: {remark}")
    raise Wrong(f"{what} is {shown(value)}, and that is not it")


def one_of(
    answer: Any,
    right: str,
    options: Sequence[str],
    *,
    what: str = "your answer",
    mistakes: Mapping[str, str] | None = None,
) -> None:
    """Of several `options` the answer is the `right` one; capitals and spaces around it do not count.

    Raises:
        Wrong: it is another one, or none of them.
    """
    if not isinstance(answer, str) or answer.strip().lower() not in [o.lower() for o in options]:
        raise Wrong(f"{what} is {shown(answer)}; choose one of {', '.join(map(repr, options))}")
    given = answer.strip().lower()
    if given != right.lower():
        remarks = {mistake.lower(): remark for mistake, remark in (mistakes or {}).items()}
        raise Wrong(f"{what} is {answer.strip()!r}: {remarks.get(given, 'that is not it')}")


def array_of(
    answer: Any,
    *,
    shape: Sequence[int | None] | None = None,
    dtype: str | None = None,
    what: str = "your answer",
) -> "numpy.ndarray":
    """`answer` as a numpy array; torch tensors and lists of numbers are taken too.

    Args:
        shape: what it must have; None stands for any length: ``(None, 28, 28)``.
        dtype: what it must have: "uint8".

    Raises:
        Wrong: it is no array, or another one.
    """
    import numpy

    value = answer.detach().cpu() if hasattr(answer, "detach") else answer
    try:
        array = numpy.asarray(value)
    except Exception as error:
        raise Wrong(f"{what} is {shown(answer)}, and an array is wanted") from error
    if array.dtype.kind not in "biuf":
        raise Wrong(f"{what} is {shown(answer)}, and an array of numbers is wanted")
    fits = shape is None or (
        array.ndim == len(shape)
        and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    )
    if not fits:
        raise Wrong(f"{what} has the shape {array.shape}")
    if dtype is not None and str(array.dtype) != dtype:
        raise Wrong(f"{what} has the dtype {array.dtype}")
    return array


def same_array(
    answer: Any, expected: Any, *, rel: float = 1e-5, abs: float = 1e-8, what: str = "your answer"
) -> None:
    """The array `answer` has the shape and the values of `expected`, up to the tolerances.

    Raises:
        Wrong: it has others.
    """
    import numpy

    expected = numpy.asarray(expected)
    array = array_of(answer, shape=expected.shape, what=what)
    off = ~numpy.isclose(array, expected, rtol=rel, atol=abs, equal_nan=True)
    if off.any():
        raise Wrong(f"{what} has the right shape, and {off.sum()} of its {off.size} values differ")


def result_of(function: Any, *args: Any, what: str = "your function", **options: Any) -> Any:
    """What the learner's `function` returns for a small input.

    Raises:
        NotAttempted: it returns ``...`` or raises NotImplementedError.
        Wrong: it is no function, or it raises anything else.
    """
    if not callable(function):
        raise Wrong(f"{what} is {shown(function)}, and a function is wanted")
    try:
        result = function(*args, **options)
    except NotImplementedError as error:
        raise NotAttempted from error
    except (Exception, SystemExit) as error:
        given = ", ".join([*map(shown, args), *(f"{k}={shown(v)}" for k, v in options.items())])
        raise Wrong(
            f"{what}, called with {given or 'nothing'}, raised {type(error).__name__}: {error}"
        ) from error
    if is_blank(result):
        raise NotAttempted
    return result


def of_type(answer: Any, *names: str, what: str = "your answer") -> None:
    """`answer` is an object of a class with one of these `names`, or of a class below it: no import needed.

    Raises:
        Wrong: it is of another, or it is the class itself.
    """
    if not {cls.__name__ for cls in type(answer).__mro__} & set(names):
        raise Wrong(f"{what} is {shown(answer)}, and {_a(' or '.join(names))} is wanted")


def _a(noun: str) -> str:
    noun = "array" if noun == "ndarray" else noun
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _is_stub(function: Any) -> bool:
    """Whether a function does nothing but return None or ``...``: its body is ``...`` or ``pass``."""
    code = getattr(function, "__code__", None)
    if not inspect.iscode(code):
        return False
    constants = {None, ..., function.__doc__}
    return code.co_code in _STUBS and all(constant in constants for constant in code.co_consts)
