"""Events from any process to the kernel: who may send, in which order, and what a deaf kernel costs."""

import json
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from labkit import channel
from labkit.channel import Address, Listener, Sender


class Heard:
    """Takes events; `wait` until some number of them is there."""

    def __init__(self):
        self.events = []
        self._news = threading.Condition()

    def __call__(self, event):
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def wait(self, number, seconds=30):
        with self._news:
            assert self._news.wait_for(lambda: len(self.events) >= number, seconds), self.events[-3:]
        return self.events


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def listener(heard):
    listener = Listener(heard)
    yield listener
    listener.close()


@pytest.fixture
def sender(listener):
    sender = Sender(listener.address)
    yield sender
    sender.close()


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def caller(address, *, key=None):
    """A socket that has answered the listener's challenge."""
    connection = socket.create_connection(address[:2], timeout=10)
    nonce = connection.recv(256).strip().decode()
    connection.sendall(channel._proof(key or address[2], nonce) + b"\n")
    return connection


def hung_up(connection):
    """Whether the other side ends the connection (what it sent before is read away)."""
    connection.settimeout(30)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


# -- what is sent arrives -------------------------------------------------------------------------------


def test_events_arrive_whole_and_in_order(sender, heard):
    sent = [{"kind": "step", "step": k, "text": "é\n😀 \u2028"} for k in range(500)]
    assert all(sender.send(event) for event in sent)
    assert heard.wait(500) == sent


def test_the_first_event_may_come_with_the_proof(listener, heard):
    connection = socket.create_connection(listener.address[:2], timeout=10)
    nonce = connection.recv(256).strip().decode()
    connection.sendall(channel._proof(listener.address[2], nonce) + b'\n{"a":1}\n{"b":2}\n{"half":')
    assert heard.wait(2) == [{"a": 1}, {"b": 2}]
    connection.close()


def test_a_line_may_come_in_pieces(listener, heard):
    with caller(listener.address) as connection:
        for piece in (b'{"a"', b":1", b"}", b'\n{"b":2}\n'):
            connection.sendall(piece)
            time.sleep(0.02)
        assert heard.wait(2) == [{"a": 1}, {"b": 2}]


def test_scalars_of_other_libraries_become_numbers(sender, heard):
    class Odd:
        def __str__(self):
            return "odd " * 1000

    sent = {"loss": np.float32(0.5), "rows": np.int64(7), "zero-d": np.array(2.5), "many": np.arange(3)}
    sender.send({**sent, "odd": Odd(), "nan": float("nan")})
    (event,) = heard.wait(1)
    assert [event[name] for name in sent] == [0.5, 7, 2.5, "[0 1 2]"]
    assert event["odd"].startswith("odd") and len(event["odd"]) == 200
    assert event["nan"] != event["nan"]


def test_what_cannot_be_told_in_json_disturbs_nobody(sender, heard):
    class Hostile:
        def __str__(self):
            raise RuntimeError("no text")

    circle = {}
    circle["again"] = circle
    assert not sender.send({"metric": Hostile()})
    assert not sender.send(circle)
    assert sender.send({("a", "b"): 1, "kept": 2})
    assert heard.wait(1) == [{"kept": 2}]


def test_a_line_that_is_too_long_is_not_sent(sender, heard):
    assert not sender.send({"text": "x" * channel._MAX_LINE})
    assert sender.send({"text": "short"})
    assert heard.wait(1) == [{"text": "short"}]


def test_many_senders_each_in_order(listener, heard):
    code = (
        "import sys\n"
        "from labkit.channel import Address, Sender\n"
        "address = Address(*eval(sys.stdin.read()))\n"
        "sender = Sender(address)\n"
        "assert all(sender.send({'who': {who}, 'n': n}) for n in range(200))\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code.replace("{who}", str(who))], stdin=subprocess.PIPE)
        for who in range(3)
    ]
    for child in children:
        child.stdin.write(repr(tuple(listener.address)).encode())
        child.stdin.close()

    def from_this_process(who):
        sender = Sender(listener.address)
        for n in range(200):
            sender.send({"who": who, "n": n})

    own = [threading.Thread(target=from_this_process, args=(who,)) for who in range(3, 6)]
    for thread in own:
        thread.start()
    for worker in own + children:
        worker.join() if isinstance(worker, threading.Thread) else worker.wait(60)
    events = heard.wait(1200)
    for who in range(6):
        assert [event["n"] for event in events if event["who"] == who] == list(range(200))


def test_threads_may_share_a_sender(sender, heard):
    def send(who):
        for n in range(100):
            sender.send({"who": who, "n": n})

    own = [threading.Thread(target=send, args=(who,)) for who in range(4)]
    for thread in own:
        thread.start()
    events = heard.wait(400)
    for who in range(4):
        assert [event["n"] for event in events if event["who"] == who] == list(range(100))


def test_drain_hands_on_all_that_arrived(listener):
    events = []

    def slowly(event):
        time.sleep(0.001)
        events.append(event)

    listener._on_event = slowly
    sender = Sender(listener.address)
    for k in range(100):
        sender.send({"k": k})
    sender.close()
    listener.drain(30)
    assert len(events) == 100


def test_drain_while_senders_stay_connected(sender, listener, heard):
    for k in range(50):
        sender.send({"k": k})
        listener.drain(30)
        assert len(heard.events) == k + 1


def test_drain_does_not_wait_for_ever(listener):
    stranger = socket.create_connection(listener.address[:2], timeout=10)  # never answers the challenge
    stranger.recv(256)
    listener.drain(0.05)
    stranger.close()


# -- who may send ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [b"", b"\n", b"0" * 64 + b"\n", b"x" * 5000, b"\xff\xfe" * 32 + b"\n", "é".encode() * 32 + b"\n"],
    ids=["nothing", "empty", "zeros", "long", "no text", "not ascii"],
)
def test_who_does_not_prove_the_key_is_refused(listener, heard, answer, capfd):
    with socket.create_connection(listener.address[:2], timeout=10) as stranger:
        stranger.recv(256)
        stranger.sendall(answer + b'{"kind":"print","text":"evil"}\n' * 2)
        assert hung_up(stranger)
    until(lambda: not threads("labkit-channel-peer"))
    assert heard.events == []
    assert capfd.readouterr().err == ""  # a stranger makes no noise in the notebook


def test_a_wrong_key_is_refused(listener, heard):
    with caller(listener.address, key="0" * 32) as stranger:
        stranger.sendall(b'{"kind":"print"}\n')
        assert hung_up(stranger)
    sender = Sender(Address(*listener.address[:2], "f" * 32))
    for _ in range(3):
        sender.send({"kind": "print"})
    sender.close()
    until(lambda: not threads("labkit-channel-peer"))
    assert heard.events == []


def test_a_proof_cannot_be_used_again(listener, heard):
    with socket.create_connection(listener.address[:2], timeout=10) as first:
        proof = channel._proof(listener.address[2], first.recv(256).strip().decode())
    with socket.create_connection(listener.address[:2], timeout=10) as second:
        second.recv(256)
        second.sendall(proof + b'\n{"kind":"print"}\n')
        assert hung_up(second)
    assert heard.events == []


def test_each_listener_has_a_key_of_its_own(listener):
    other = Listener(lambda event: None)
    assert other.address[2] != listener.address[2]
    assert len(listener.address[2]) == 32
    other.close()


def test_the_key_is_in_no_text(listener, sender, caplog, capfd):
    key, address = listener.address[2], listener.address
    caplog.set_level(logging.DEBUG)
    sender.send({"kind": "step"})
    again = pickle.loads(pickle.dumps(address))
    assert again == address and isinstance(again, Address)
    for thing in (address, again, listener, sender, [address], {"a": address}):
        assert key not in repr(thing) and key not in str(thing) and key not in f"{thing}"
    listener.close()
    sender.send({})
    sender.send({})
    out, err = capfd.readouterr()
    assert key not in out + err + caplog.text


def test_only_loopback_by_default(listener):
    assert listener.address[0] == "127.0.0.1" == listener._server.getsockname()[0]


# -- what is none of ours -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1, 2]",
        b"7",
        b"null",
        b'"text"',
        b"\xff\x00\xfe",
        b"{",
        b"",
        b"[" * 100_000,
        b"9" * 5000,
        b'{"kind":"step"} {"kind":"step"}',
    ],
)
def test_garbage_is_passed_over(listener, heard, line, capfd):
    with caller(listener.address) as connection:
        connection.sendall(line + b'\n{"after":1}\n')
        assert heard.wait(1) == [{"after": 1}]
    assert capfd.readouterr().err == ""


def test_half_a_line_is_no_event(listener, heard):
    with caller(listener.address) as connection:
        connection.sendall(b'{"a":1}\n{"b":2}')
    heard.wait(1)
    until(lambda: not threads("labkit-channel-peer"))
    assert heard.events == [{"a": 1}]


def test_a_line_without_end_is_cut_off(listener, heard, sender):
    with caller(listener.address) as connection:
        connection.settimeout(30)
        with pytest.raises(OSError):  # it hangs up, and does not gather gigabytes
            for _ in range(10_000):
                connection.sendall(b"x" * (1 << 16))
    sender.send({"still": "there"})
    assert heard.wait(1) == [{"still": "there"}]


def test_an_exception_ends_only_its_sender(listener, heard, monkeypatch):
    failures = []
    monkeypatch.setattr(threading, "excepthook", lambda args: failures.append(args.exc_value))

    def picky(event):
        if event.get("bad"):
            raise LookupError("bad event")
        heard(event)

    listener._on_event = picky
    good, bad = Sender(listener.address), Sender(listener.address)
    good.send({"n": 1})
    bad.send({"bad": True})
    until(lambda: failures)
    good.send({"n": 2})
    assert heard.wait(2) == [{"n": 1}, {"n": 2}]
    assert isinstance(failures[0], LookupError)


# -- a kernel that does not listen ----------------------------------------------------------------------


def test_a_listener_that_does_not_take_events_costs_little(listener, heard, monkeypatch):
    """`on_event` is blocked: the sender waits about `_PATIENCE` once, then no more, and recovers."""
    gate = threading.Event()

    def blocked(event):
        gate.wait(60)
        heard({"n": event["n"]})

    listener._on_event = blocked
    monkeypatch.setattr(channel, "_RETRY_AFTER", 0.5)
    sender = Sender(listener.address)
    waited, sent = [], 0
    while not waited or waited[-1] < 0.3:  # until the buffers between us are full
        before = time.monotonic()
        took = sender.send({"n": sent, "pad": "x" * 100_000})
        waited.append(time.monotonic() - before)
        sent += 1
        assert sent < 1000
    assert not took
    assert waited[-1] < channel._PATIENCE + 5  # coarse: the machine may be busy
    before = time.monotonic()
    for _ in range(50):
        assert not sender.send({"n": sent, "pad": ""})
        sent += 1
    assert time.monotonic() - before < channel._PATIENCE  # all of them together
    gate.set()
    until(lambda: sender.send({"n": -1}))
    until(lambda: heard.events and heard.events[-1] == {"n": -1})
    # Nothing was lost in so short a time; the line that was cut off in the middle came again.
    numbers = [event["n"] for event in heard.events if event["n"] >= 0]
    assert numbers == list(range(sent))


def test_a_kernel_that_is_stopped_costs_little(monkeypatch):
    code = (
        "import time\n"
        "from labkit.channel import Listener\n"
        "listener = Listener(lambda event: print(event['n'], flush=True))\n"
        "print(*listener.address, flush=True)\n"
        "time.sleep(120)\n"
    )
    monkeypatch.setattr(channel, "_RETRY_AFTER", 0.5)
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        host, port, key = kernel.stdout.readline().split()
        kernel.send_signal(signal.SIGSTOP)
        sender = Sender(Address(host, int(port), key))
        before = time.monotonic()
        assert not sender.send({"n": 0})  # the system answers the call, and nobody the greeting
        # Two of them one after the other: connecting and the greeting share one patience.
        assert time.monotonic() - before < channel._PATIENCE + 5
        before = time.monotonic()
        assert not any(sender.send({"n": n}) for n in range(1, 20))
        assert time.monotonic() - before < channel._PATIENCE
        kernel.send_signal(signal.SIGCONT)
        until(lambda: sender.send({"n": "last"}))
        heard = [kernel.stdout.readline().strip() for _ in range(20)]
        assert heard == [str(n) for n in range(20)]
    finally:
        kernel.kill()
        kernel.wait()


def test_nobody_there_is_noticed_at_once(listener, monkeypatch):
    address = listener.address
    listener.close()
    sender = Sender(address)
    before = time.monotonic()
    assert not any(sender.send({"n": n}) for n in range(1000))
    assert time.monotonic() - before < 5
    assert len(sender._unsent) == channel._UNSENT_KEPT  # what is kept for later is bounded


def test_an_interrupt_in_the_middle_of_a_line_leaves_no_half_line(listener, heard, monkeypatch):
    sender = Sender(listener.address)
    sender.send({"n": 0})
    whole = sender._socket

    class Interrupted:
        def settimeout(self, seconds): ...

        def sendall(self, line):
            whole.sendall(line[:3])
            raise KeyboardInterrupt

        def close(self):
            whole.close()

    sender._socket = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        sender.send({"n": 1})
    monkeypatch.setattr(channel, "_RETRY_AFTER", 0)
    sender._silent_until = 0
    assert sender.send({"n": 2})
    assert heard.wait(3) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_send_within_a_send_does_not_lock_up(listener, heard):
    """A signal's handler that prints comes back into the sender of the thread that it interrupted."""
    sender = Sender(listener.address)
    sender.send({"n": 0})
    whole = sender._socket

    class Nested:
        def settimeout(self, seconds): ...

        def sendall(self, line):
            sender._socket = whole
            sender.send({"n": "from the handler"})
            whole.sendall(line)

    sender._socket = Nested()
    sender.send({"n": 1})
    assert [event["n"] for event in heard.wait(3)] == [0, 1, "from the handler"]


# -- processes and ends ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_connects_anew(listener, heard):
    sender = Sender(listener.address)
    sender.send({"who": "parent", "n": 0})
    held = threading.Event()

    def hold():
        with sender._lock:
            held.set()
            time.sleep(0.5)

    # The lock is held by a thread that the child does not have: the child must not wait for it.
    threading.Thread(target=hold).start()
    held.wait(10)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: [sender.send({"who": "child", "n": n}) for n in range(50)]
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    for n in range(1, 50):
        sender.send({"who": "parent", "n": n})
    events = heard.wait(100)
    for who in ("parent", "child"):
        assert [event["n"] for event in events if event["who"] == who] == list(range(50))


def test_close_ends_the_threads_and_frees_the_port(heard):
    before = set(threading.enumerate())
    listener = Listener(heard)
    sender = Sender(listener.address)
    sender.send({"n": 1})
    heard.wait(1)
    listener.close()
    until(lambda: not set(threading.enumerate()) - before)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.address[:2], timeout=5)
    with socket.create_server(listener.address[:2]):
        pass
    until(lambda: not sender.send({"n": 2}))  # noticed, and nothing raised
    listener.close()  # twice does no harm
    assert len(heard.events) == 1


def test_a_sender_may_be_closed_and_used_again(sender, heard):
    for n in range(3):
        sender.send({"n": n})
        sender.close()
    # Three connections, served by three threads: the order between them is nobody's promise.
    assert sorted(event["n"] for event in heard.wait(3)) == [0, 1, 2]


def test_no_file_descriptor_at_the_moment(listener, heard, monkeypatch):
    """A kernel that runs out of descriptors for a while hears senders again when it has some."""
    real, failed = listener._server.accept, threading.Event()

    class Poor:
        def __getattr__(self, name):
            return getattr(server, name)

        def accept(self):
            if not failed.is_set():
                failed.set()
                raise OSError(24, os.strerror(24))
            return real()

    server, listener._server = listener._server, Poor()
    first, second = Sender(listener.address), Sender(listener.address)
    first.send({"n": 1})
    second.send({"n": 2})
    heard.wait(2)
    assert failed.is_set()


def test_an_event_is_one_line_of_json(listener):
    assert json.loads(channel._line({"text": "a\nb"})) == {"text": "a\nb"}
    assert channel._line({"text": "a\nb"}).count(b"\n") == 1
