"""Events from any process to the kernel: who may send, in which order, and what a busy kernel costs."""

import contextlib
import gc
import logging
import multiprocessing
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from multiprocessing.connection import Client

import numpy as np
import pytest

from labkit.panel.tracking import channel
from labkit.panel.tracking.channel import Address, Listener, Sender
from labs import until


@pytest.fixture(autouse=True)
def own_threads():
    """Returns the channel's threads by name, without those that tests of other modules have left."""
    earlier = set(threading.enumerate())
    return lambda name: [
        one for one in threading.enumerate() if one.name.startswith(name) and one not in earlier
    ]


@pytest.fixture
def heard():
    return []


@pytest.fixture
def listener(heard):
    with contextlib.closing(Listener(heard.append)) as listener:
        yield listener


@pytest.fixture
def sender(listener):
    return Sender(listener.address)


def arrived(heard, number):
    until(lambda: len(heard) >= number)
    return heard


def test_scalars_become_numbers_and_what_json_cannot_express_is_dropped(sender, heard):
    class Odd:
        def __str__(self):
            return "odd " * 1000

    class Hostile:
        def __str__(self):
            raise RuntimeError("no text")

    circle = {}
    circle["again"] = circle
    for event in ({"metric": Hostile()}, circle, {"text": "x" * 10**6}, {("a", "b"): 1, "kept": 2}):
        sender.send(event)
    scalars = {"loss": np.float32(0.5), "rows": np.int64(7), "zero-d": np.array(2.5), "many": np.arange(3)}
    sender.send({**scalars, "odd": Odd(), "nan": float("nan")})
    first, event = arrived(heard, 2)
    assert first == {"kept": 2}
    assert [event[name] for name in scalars] == [0.5, 7, 2.5, "[0 1 2]"]
    assert event["odd"].startswith("odd") and len(event["odd"]) == 200
    assert event["nan"] != event["nan"]


def test_a_process_that_exits_has_sent_everything_and_drain_waits_for_it():
    code = (
        "import sys\n"
        "from labkit.panel.tracking.channel import Address, Sender\n"
        "sender = Sender(Address(*eval(sys.stdin.read())))\n"
        "for n in range(500): sender.send({'n': n})\n"
    )
    heard = []
    listener = Listener(lambda event: (time.sleep(0.001), heard.append(event["n"])))
    address = repr(tuple(listener.address)).encode()
    subprocess.run([sys.executable, "-c", code], input=address, timeout=60, check=True)
    listener.drain(30)
    assert heard == list(range(500))  # complete, and in order
    with socket.create_connection(listener.address[:2], timeout=10) as stranger:
        stranger.recv(256)  # and never answers the challenge
        listener.drain(0.05)  # comes back nevertheless
    listener.close()


# -- who may send ---------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_on_both_sides(listener, heard, capfd):
    with pytest.raises(multiprocessing.AuthenticationError):
        Client(listener.address[:2], authkey=b"0" * 32)
    sender = Sender(Address(*listener.address[:2], "f" * 32))
    for _ in range(3):
        sender.send({"kind": "print"})
    assert not sender.flush(10)
    assert heard == [] and capfd.readouterr().err == ""


def test_a_listener_is_on_loopback_and_no_text_shows_its_key(listener, sender, caplog, capfd):
    key, address = listener.address.key, listener.address
    with contextlib.closing(Listener(print)) as other:
        assert other.address.key != key and len(key) == 32 and address.host == "127.0.0.1"
    caplog.set_level(logging.DEBUG)
    sender.send({"kind": "step"})
    again = pickle.loads(pickle.dumps(address))
    assert again == address and isinstance(again, Address)
    for thing in (address, again, listener, sender, [address], {"a": address}):
        assert key not in repr(thing) and key not in str(thing) and key not in f"{thing}"
    listener.close()
    sender.send({})
    out, err = capfd.readouterr()
    assert key not in out + err + caplog.text


# -- what is not an event -------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"not json", b"\xff\x00\xfe", pickle.dumps({"a": 1})])
def test_nothing_is_unpickled_and_what_is_no_json_is_the_end(listener, heard, capfd, garbage):
    with Client(listener.address[:2], authkey=listener.address.key.encode()) as connection:
        connection.send_bytes(garbage)
        assert connection.poll(10)
    assert heard == [] and capfd.readouterr().err == ""


# -- a kernel that does not read ------------------------------------------------------------------------


def test_a_kernel_that_is_stopped_does_not_hold_up_the_training():
    """The thread that trains returns from `send` although nothing can be sent; later all of it arrives."""
    code = (
        "import time\n"
        "from labkit.panel.tracking.channel import Listener\n"
        "listener = Listener(lambda event: print(event['n'], flush=True))\n"
        "print(*listener.address, flush=True)\n"
        "time.sleep(120)\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        host, port, key = kernel.stdout.readline().split()
        sender = Sender(Address(host, int(port), key))
        sender.send({"n": 0})
        assert kernel.stdout.readline().strip() == "0"
        kernel.send_signal(signal.SIGSTOP)
        for n in range(1, 300):
            sender.send({"n": n, "pad": "x" * 100_000})  # more than the buffers between us take
        assert not sender.flush(0.1)
        kernel.send_signal(signal.SIGCONT)
        assert [kernel.stdout.readline().strip() for _ in range(299)] == [str(n) for n in range(1, 300)]
    finally:
        kernel.kill()
        kernel.wait()


def test_of_what_a_kernel_out_of_reach_misses_the_newest_is_kept(listener, heard):
    """And a thousand printed lines push out no report."""
    sender = Sender(listener.address)
    sender._silent_until = time.monotonic() + 60
    for n in range(3000):
        sender.send({"kind": "print", "n": n})
    sender.send({"kind": "report"})
    assert len(sender._unsent) < channel._QUEUE_SIZE
    for n in range(3000):
        sender.send({"kind": "step", "n": n})
    assert len(sender._unsent) == channel._QUEUE_SIZE and not sender.flush(0.1)
    sender._silent_until = 0.0
    sender.send({"kind": "step", "n": 3000})
    until(lambda: heard and heard[-1]["n"] == 3000)
    assert [event["n"] for event in heard] == list(range(2001, 3001))


def test_a_sender_connects_again(listener, sender, heard, monkeypatch):
    monkeypatch.setattr(channel, "_RETRY_AFTER", 0)
    sender.send({"n": 1})
    arrived(heard, 1)
    for client in list(listener._waiting):
        client.shutdown(socket.SHUT_RDWR)  # as a network that fails for a moment
    until(lambda: not listener._waiting)
    until(lambda: sender.send({"n": 2}) or {"n": 2} in heard)


def test_a_handler_that_sends_within_a_send_does_not_lock_up(sender, heard):
    """A signal handler that prints comes back into the sender of the thread that it interrupted."""

    class Interrupting:
        def __float__(self):
            signal.raise_signal(signal.SIGUSR1)
            return 1.0

    before = signal.signal(signal.SIGUSR1, lambda *_: sender.send({"from": "the handler"}))
    try:
        sender.send({"loss": Interrupting()})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert arrived(heard, 2) == [{"from": "the handler"}, {"loss": 1.0}]


# -- processes and ends ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_opens_its_own_connection(sender, heard):
    sender.send({"who": "parent", "n": 0})
    child = multiprocessing.get_context("fork").Process(
        target=lambda: [sender.send({"who": "child", "n": n}) for n in range(50)]
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    for n in range(1, 50):
        sender.send({"who": "parent", "n": n})
    events = arrived(heard, 100)
    for who in ("parent", "child"):
        assert [event["n"] for event in events if event["who"] == who] == list(range(50))


def test_nothing_is_left_of_a_sender_when_its_run_is_over(heard, monkeypatch):
    monkeypatch.setattr(channel, "_LOOK_EVERY", 0.05, raising=False)
    with contextlib.closing(Listener(heard.append)) as listener:
        sender = Sender(listener.address)
        sender.send({"n": 1})
        arrived(heard, 1)
    left = weakref.ref(sender)
    del sender
    until(lambda: not [t for t in threading.enumerate() if t.name == "labkit-sender"], seconds=10)
    gc.collect()
    assert left() is None


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6(heard):
    with contextlib.closing(Listener(heard.append, host="::1")) as listener:
        Sender(listener.address).send({"n": 1})
        assert arrived(heard, 1) == [{"n": 1}]


def test_close_ends_the_threads_and_frees_the_port(listener, sender, heard, own_threads):
    sender.send({"n": 1})
    arrived(heard, 1)
    listener.close()
    until(lambda: own_threads("labkit-channel") == [])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.address[:2], timeout=5)
    sender.send({"n": 2})  # raises nothing
    listener.close()  # twice does no harm
    assert len(heard) == 1
