"""Exceptions that arrive in another process, with their type's name and their message, whatever they are.

An exception is pickled in the worker that raised it, and unpickled in the process that reports it. That fails
where its ``__init__`` needs more than a message, where it holds a lock or a socket, and where the receiver
lacks its module. All that is left then is an error about unpickling, and in Ray sometimes the end of the run.
"""

import contextlib
import pickle
import sys
from typing import Any, NoReturn

_EVERYWHERE = ("builtins", "ray")  # packages that the receiver has, too


def raise_sendable(error: BaseException, *, wrap: bool = False) -> NoReturn:
    """Raise `error` in a form that other processes can unpickle. Call it where `error` is being handled.

    Args:
        wrap: an exception that could be sent unchanged becomes an ordinary `Exception`, too.
    """
    sent = _sendable(error, wrap=wrap)
    if sent is error:
        raise error
    implicit = None if error.__suppress_context__ else error.__context__
    raise sent.with_traceback(error.__traceback__) from (error.__cause__ or implicit)


def message_of(error: BaseException) -> str:
    """Return the text of an exception, of a group with that of its first exception."""
    try:
        text = str(error)
    except Exception as wrong:  # of the reader's own __str__
        return f"no message, because its __str__ raised {type(wrong).__name__}"
    if isinstance(error, BaseExceptionGroup):
        first = error.exceptions[0]
        return f"{text}: {type(first).__name__}: {message_of(first)}"
    return text


def _sendable(error: BaseException, *, wrap: bool) -> BaseException:
    cls = type(error)
    content = None if wrap else _pickled(error)
    package = cls.__module__.partition(".")[0]
    if content is not None and package in _EVERYWHERE:
        return error
    sent = _stand_in(content, cls.__module__, cls.__qualname__, message_of(error))
    for note in getattr(error, "__notes__", ()):
        sent.add_note(note)
    return sent


def _pickled(error: BaseException) -> bytes | None:
    """Return the pickled exception; None if it can't be pickled, or unpickled again."""
    # Ray's own pickler sends classes of a notebook along, which plain pickle can't.
    pickler = sys.modules.get("ray.cloudpickle", pickle)
    try:
        content = pickler.dumps(error)
        pickle.loads(content)
    except Exception:
        return None
    return content


def _stand_in(content: bytes | None, module: str, qualname: str, message: str) -> BaseException:
    """Return an exception that looks like the one it stands for, and becomes that one where it can."""
    attributes = {
        "__module__": module,
        "__qualname__": qualname,
        "__str__": lambda _: message,
        "__reduce__": lambda _: (_received, (content, module, qualname, message)),
    }
    name = qualname.rpartition(".")[2]
    cls: Any = type(name, (Exception,), attributes)
    return cls(message)


def _received(content: bytes | None, module: str, qualname: str, message: str) -> BaseException:
    if content is not None:
        with contextlib.suppress(Exception):  # this process lacks a module of it
            return pickle.loads(content)
    return _stand_in(content, module, qualname, message)
