"""A listener of the kernel, and the events that it has heard."""

import contextlib

import pytest

from labkit.worker.channel import Listener
from labkit.worker.events import Event
from labs import until


class Heard(list):
    """Events."""

    def after(self, number):
        """The events, when so many have come."""
        until(lambda: len(self) >= number)
        return self

    def of_kind(self, kind: type[Event]):
        return [event for event in self if isinstance(event, kind)]


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def listener(heard):
    with contextlib.closing(Listener(heard.append)) as listener:
        yield listener
