"""Helpers with which a check looks at an answer, for those who write lessons.

    def two_batches(sizes):
        array_of(sizes, shape=(2,), what="the list of batch sizes")
        close_to(sizes[0], 64, mistakes={128: "that is the global batch"}, what="the first")

Each function returns if the answer is right and raises `Wrong` if not. The message says what was found, never
the solution. Whatever else a check raises, the learner sees in one line as well. No check looks at seconds.
"""

import ast
import inspect
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

# What this Python compiles functions to that only return None or `...`, with a docstring and without.
_STUBS = frozenset(
    next(filter(inspect.iscode, compile(source, "stub", "exec").co_consts)).co_code
    for source in (
        "def f(): ...",
        "def f(): 'x'",
        "def f(): return ...",
        "def f():\n 'x'\n return ...",
    )
)


class Wrong(Exception):  # noqa: N818  a verdict and not a failure
    """An answer is not right; the text says what was found."""


class NotAttempted(Exception):  # noqa: N818
    """There is no answer yet: the `...` is still there. The text says where, if there are several."""


def is_blank(answer: Any) -> bool:
    """Return whether it is ``...``, a function that does nothing, or a list or dict with ``...`` in it."""
    if isinstance(answer, Mapping):
        return any(value is ... for value in answer.values())
    if isinstance(answer, (list, tuple)):
        return any(item is ... for item in answer)
    code = getattr(answer, "__code__", None)
    if not inspect.iscode(code):
        return answer is ...
    return code.co_code in _STUBS and {None, ..., answer.__doc__}.issuperset(code.co_consts)


def require_no_dots(function: Any) -> None:
    """Raise NotAttempted if `function` is blank, or a ``...`` is still used somewhere in it."""
    if is_blank(function):
        raise NotAttempted
    line = _dots(function)
    if line:
        raise NotAttempted(f"line {line} still has a `...`")
    code = getattr(function, "__code__", None)
    if line is None and ... in getattr(code, "co_consts", ()):
        raise NotAttempted


def _dots(function: Any) -> int | None:
    """Return the first line of the source with a ``...``, or 0; None without source.

    The code would not do: ``if ...`` leaves none.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        definition: Any = ast.parse(textwrap.dedent("".join(lines))).body[0]
        body = definition.body
    except (OSError, TypeError, SyntaxError, AttributeError, IndexError):
        return None
    nodes = [node for statement in body for node in ast.walk(statement)]
    indices = [node.slice for node in nodes if isinstance(node, ast.Subscript)]
    in_indices = {id(node) for index in indices for node in getattr(index, "elts", ())}  # x[..., 0]
    dots = [node for node in nodes if isinstance(node, ast.Constant) and node.value is ...]
    dotted_lines = [node.lineno for node in dots if id(node) not in in_indices]
    if not dotted_lines:
        return 0
    return min(dotted_lines) + first - 1


def describe(value: Any) -> str:
    """Describe any value in a few words: "'64' (a str)", "an array of shape (3, 28), uint8"."""
    a_type = _a(type(value).__name__)
    try:
        if hasattr(value, "dtype") and tuple(getattr(value, "shape", ())):
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{a_type} of shape {tuple(value.shape)}, {dtype}"
        if isinstance(value, type):
            return f"the class {value.__name__}"
        if callable(value) and hasattr(value, "__name__"):
            return f"the function {value.__name__}"
        text = " ".join(repr(value).split())
    except Exception:  # a learner's object may do anything
        return a_type
    if len(text) > 60:
        text = text[:59] + "…"
    if isinstance(value, (int, float)) or value is None:
        return text
    return f"{text} ({a_type})"


def _a(noun: str) -> str:
    noun = "array" if noun == "ndarray" else noun
    article = "an" if noun[:1].lower() in "aeiou" else "a"
    return f"{article} {noun}"


def number(answer: Any, what: str = "your answer") -> int | float:
    """Return `answer` as a number: an array or a tensor without dimensions is one, NaN and True are not."""
    array = _as_array(answer)
    if array is None or array.ndim or array.dtype.kind == "b" or math.isnan(array):
        raise Wrong(f"{what} is {describe(answer)}, and a number is expected")
    return array.item()


def close_to(
    answer: Any,
    expected: float,
    *,
    rel: float = 1e-6,
    abs: float = 1e-9,
    what: str = "your answer",
    mistakes: Mapping[float, str] | None = None,
    otherwise: str = "that is not it",
) -> None:
    """Require the number `expected`, up to the larger of the tolerances.

    Args:
        mistakes: the remark for each likely wrong number: ``{64: "that is what ONE worker sees"}``.
        otherwise: the remark for every other wrong number.
    """
    value = number(answer, what)
    if math.isclose(value, expected, rel_tol=rel, abs_tol=abs):
        return
    for mistake, remark in (mistakes or {}).items():
        if math.isclose(value, mistake, rel_tol=rel, abs_tol=abs):
            raise Wrong(f"{what} is {describe(value)}: {remark}")
    raise Wrong(f"{what} is {describe(value)}, and {otherwise}")


def list_is(
    answer: Any,
    expected: Sequence[int],
    *,
    what: str,
    mistakes: Mapping[tuple, str],
) -> None:
    """Require a list of numbers; `mistakes` has the remark for each likely wrong list, as a tuple."""
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        raise Wrong(f"{what} is {describe(answer)}, and a list of numbers is expected")
    numbers = tuple(number(item, f"one of {what}") for item in answer)
    if numbers != tuple(expected):
        remark = mistakes.get(numbers, "that is not it")
        raise Wrong(f"{what} is {describe(list(numbers))}: {remark}")


def array_of(
    answer: Any,
    *,
    shape: tuple[int, ...] | None = None,
    dtype: str | None = None,
    what: str = "your answer",
) -> "numpy.ndarray":
    """Return `answer`, which may be a tensor or a list of numbers, as an array of a `shape` and `dtype`."""
    array = _as_array(answer)
    if array is None:
        raise Wrong(f"{what} is {describe(answer)}, and an array of numbers is expected")
    if shape is not None and array.shape != shape:
        raise Wrong(f"{what} has the shape {array.shape}")
    if dtype is not None and str(array.dtype) != dtype:
        raise Wrong(f"{what} has the dtype {array.dtype}")
    return array


def _as_array(answer: Any) -> "numpy.ndarray | None":
    """Return a number or an array of numbers as an array, and None for everything else."""
    import numpy

    try:
        if hasattr(answer, "detach"):
            answer = answer.detach().cpu()
        array = numpy.asarray(answer)
    except Exception:  # a learner's object may do anything
        return None
    return array if array.dtype.kind in "biuf" else None


def expect_function(function: Any, what: str) -> None:
    """Require that the learner's `function` can be called."""
    if not callable(function):
        raise Wrong(f"{what} is {describe(function)}, and a function is expected")


def result_of(function: Any, *args: Any, what: str = "your function") -> Any:
    """Call the learner's `function` and return its result; ``...`` is `NotAttempted`."""
    expect_function(function, what)
    try:
        result = function(*args)
    except (Exception, SystemExit) as error:
        arguments = ", ".join(map(describe, args))
        raised = f"{type(error).__name__}: {error}"
        raise Wrong(f"{what}, called with {arguments or 'nothing'}, raised {raised}") from error
    if is_blank(result):
        raise NotAttempted
    return result


def returns(function: Any, args: Sequence[Any], expected: float, *, name: str, **remarks: Any) -> None:
    """Require that `function`, called with `args`, returns `expected`; remarks: see `close_to`."""
    arguments = [f"{arg:g}" if isinstance(arg, float) else str(arg) for arg in args]
    result = result_of(function, *args, what=name)
    call = f"{name}({', '.join(arguments)})"
    close_to(result, expected, what=call, **remarks)


def expect_type(answer: Any, *names: str, what: str = "your answer") -> None:
    """Require an instance of a class with one of these `names`, which is not imported, or of a subclass."""
    classes = {cls.__name__ for cls in type(answer).__mro__}
    if classes.isdisjoint(names):
        raise Wrong(f"{what} is {describe(answer)}, and {_a(' or '.join(names))} is expected")
