"""Events of a run of Ray come through an actor: from workers that have nothing but Ray, and after a fork."""

import contextlib
import multiprocessing
import os
import sys
import time

import pytest
import ray
from ray import cloudpickle
from ray.util import state

from labkit import process_info
from labkit.worker.channel import Sender
from labkit.worker.events import Event, Note
from labkit.worker.mailbox import Mailbox
from labs import until

pytestmark = pytest.mark.slow


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests


@pytest.fixture
def box(lab, heard):
    with contextlib.closing(Mailbox(heard.append, f"test-{time.time()}")) as box:
        yield box


@ray.remote(num_cpus=0)
def work(address, who):
    sender = Sender(address)
    for n in range(300):
        sender.send(Note(who, rank=n))
    child = multiprocessing.get_context("fork").Process(target=sender.send, args=[Note("fork")])
    child.start()  # as a data loader's, which may print
    child.join(90)
    return sender.flush(90), child.exitcode


def test_events_of_several_workers_arrive_complete_and_in_order(box, heard):
    assert ray.get([work.remote(box.address, who) for who in "ab"]) == [(True, 0)] * 2
    box.close(90)
    for who in "ab":
        assert [event.rank for event in heard if event.text == who] == list(range(300))
    assert {event.text for event in heard} == {"a", "b"}


def test_the_actor_is_where_the_kernel_is(lab, box):
    """On any other node it would be lost with it."""
    here, actor = ray.get_runtime_context(), box._actor._actor_id.hex()
    until(lambda: state.get_actor(actor, address=here.gcs_address).node_id)
    assert state.get_actor(actor, address=here.gcs_address).node_id == here.get_node_id()


def test_an_actor_that_is_lost_is_replaced(box, heard, monkeypatch):
    monkeypatch.setattr("labkit.worker.channel._RETRY_AFTER", 0.1)
    sender = Sender(box.address)
    sender.send(Event(rank=1))
    until(lambda: heard)
    ray.kill(box._actor, no_restart=False)
    until(lambda: sender.send(Event(rank=2)) or Event(rank=2) in heard)


def test_a_panel_that_is_closed_ends_the_actor_and_disturbs_no_worker(lab, heard):
    box = Mailbox(heard.append, "closed")
    sender = Sender(box.address)
    sender.send(Event(rank=1))
    until(lambda: heard)
    box.close()
    sender.send(Event(rank=2))
    assert not sender.flush(5) or heard == [Event(rank=1)]
    box.close()
    until(lambda: not named("closed"))


def named(name):
    with contextlib.suppress(ValueError):
        return ray.get_actor(name)
    return None


def test_it_opens_no_port(lab, heard):
    """As a panel does for a cluster that the lab did not start."""
    before = process_info.listening(os.getpid())
    with contextlib.closing(Mailbox(heard.append, f"test-{time.time()}")) as box:
        ray.get(work.remote(box.address, "one"))
        until(lambda: len(heard) >= 300)
        assert process_info.listening(os.getpid()) <= before
