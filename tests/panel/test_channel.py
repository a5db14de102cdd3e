"""Events from any process to the kernel: who may send, in which order, and what a busy kernel costs."""

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import zmq

from labkit.worker import channel
from labkit.worker.channel import Address, Listener, Sender
from labkit.worker.events import Event, Note, Print, Report, Saved, decode, encode
from labs import until


@pytest.fixture
def sender(listener):
    return Sender(listener.address)


def test_scalars_become_numbers_and_what_json_cannot_express_or_is_too_long_is_dropped(sender, heard):
    class Hostile:
        def __str__(self):
            raise RuntimeError("no text")

    odd = {"metric": Hostile()}, {"all": [0.5] * 10**6, "loss": np.float32(0.5)}, {("a", "b"): 1, "kept": 2}
    for metrics in odd:
        sender.send(Report(metrics))
    sender.send(Note("x" * 10**6))
    scalars = {"loss": np.float32(0.5), "rows": np.int64(7), "zero-d": np.array(2.5), "many": np.arange(3)}
    sender.send(Report(scalars))
    *reports, last = heard.after(4)
    assert [report.metrics for report in reports] == [{}, {"loss": 0.5}, {"kept": 2}]
    assert last.metrics == {"loss": 0.5, "rows": 7, "zero-d": 2.5, "many": "[0 1 2]"}


def test_a_process_that_exits_has_sent_everything_and_close_passes_it_on():
    code = (
        "import sys\n"
        "from labkit.worker.channel import Address, Sender\n"
        "from labkit.worker.events import Event\n"
        "sender = Sender(Address(*eval(sys.stdin.read())))\n"
        "for n in range(500): sender.send(Event(rank=n))\n"
    )
    heard = []
    listener = Listener(lambda event: (time.sleep(0.001), heard.append(event.rank)))
    address = repr(tuple(listener.address)).encode()
    subprocess.run([sys.executable, "-c", code], input=address, timeout=200, check=True)
    listener.close(90)
    assert heard == list(range(500))  # complete, and in order


# -- who may send ---------------------------------------------------------------------------------------


def test_without_the_key_nothing_is_heard(listener, sender, heard):
    stranger = Sender(Address(listener.address.url, zmq.curve_keypair()[0].decode()))
    stranger.send(Note("from a stranger"))
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:  # and without encryption
        socket.linger = 0
        socket.connect(listener.address.url)
        socket.send(b'{"kind":"note","text":"from another"}')
        stranger.flush(10)
        sender.send(Note("from a rank"))
        assert heard.after(1) == [Note("from a rank")]


def test_a_listener_is_on_loopback_and_no_text_shows_its_key(listener, sender):
    key, address = listener.address.key, listener.address
    with contextlib.closing(Listener(print)) as other:
        assert other.address.key != key and address.url.startswith("tcp://127.0.0.1:")
    again = pickle.loads(pickle.dumps(address))
    assert again == address and isinstance(again, Address)
    for holder in (address, listener, sender, [address], {"a": address}):
        assert key not in repr(holder) and key not in str(holder) and key not in f"{holder}"


def test_nothing_is_unpickled_and_what_is_no_event_is_passed_over(listener, heard, capfd):
    damaged = (b"not json", b"\xff\x00\xfe", pickle.dumps({"a": 1}), b"1" * 300_000, b"[]", b'{"kind":[]}')
    for garbage in (*damaged, b'{"text":"of no kind"}', b'{"kind":"note","run":"without its text"}'):
        with listener.address.connected() as deliver:
            deliver([garbage])
    Sender(listener.address).send(Note("an event"))
    assert heard.after(1) == [Note("an event")] and capfd.readouterr().err == ""


def test_of_another_version_unknown_kinds_and_fields_do_no_harm(listener, heard):
    with listener.address.connected() as deliver:
        deliver([b'{"kind":"later","rank":3,"text":"?"}', b'{"kind":"note","text":"known","later":1}'])
        assert heard.after(2) == [Event(rank=3), Note("known")]


# -- a kernel that does not read ------------------------------------------------------------------------


def test_a_kernel_that_is_stopped_does_not_hold_up_the_training():
    """The thread that trains returns from `send` although nothing can be sent; later all of it arrives."""
    code = (
        "import time\n"
        "from labkit.worker.channel import Listener\n"
        "listener = Listener(lambda event: print(event.rank, flush=True))\n"
        "print(*listener.address, flush=True)\n"
        "time.sleep(120)\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        sender = Sender(Address(*kernel.stdout.readline().split()))
        sender.send(Event())
        assert kernel.stdout.readline().strip() == "0"
        kernel.send_signal(signal.SIGSTOP)
        for n in range(1, 300):
            sender.send(Note("x" * 100_000, rank=n))  # more than the buffers between us take
        assert not sender.flush(0.1)
        kernel.send_signal(signal.SIGCONT)
        assert [kernel.stdout.readline().strip() for _ in range(299)] == [str(n) for n in range(1, 300)]
    finally:
        kernel.kill()
        kernel.wait()


def test_a_handler_that_sends_within_a_send_does_not_lock_up(sender, heard):
    """A signal handler that prints comes back into the sender of the thread that it interrupted."""

    class Interrupting:
        def __float__(self):
            signal.raise_signal(signal.SIGUSR1)
            return 1.0

    before = signal.signal(signal.SIGUSR1, lambda *_: sender.send(Note("the handler's")))
    try:
        sender.send(Report({"loss": Interrupting()}))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard.after(2) == [Note("the handler's"), Report({"loss": 1.0})]


# -- processes and ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_ipv6_and_names(heard, host):
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with contextlib.closing(Listener(heard.append, host=host)) as listener:
        Sender(listener.address).send(Note("an event"))
        assert heard.after(1) == [Note("an event")]


def test_close_frees_the_port(listener, sender, heard):
    sender.send(Event())
    heard.after(1)
    listener.close()
    host, port = listener.address.url.removeprefix("tcp://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
    sender.send(Event())  # raises nothing
    listener.close()  # twice does no harm
    assert len(heard) == 1


def test_of_what_a_kernel_out_of_reach_misses_the_newest_is_kept(listener, heard):
    """And a thousand printed lines push out no report."""
    sender = Sender(listener.address)
    sender._silent_until = time.monotonic() + 60
    for n in range(3000):
        sender.send(Print(f"line {n}"))
    sender.send(Report({}))
    assert len(sender._unsent) < channel._QUEUE_SIZE
    for n in range(3000):
        sender.send(Saved(0, n))
    assert not sender.flush(0.1)
    sender._silent_until = 0.0
    sender.send(Saved(0, 3000))
    until(lambda: heard and heard[-1] == Saved(0, 3000))
    assert [event.step for event in heard] == list(range(2001, 3001))


def test_an_event_that_comes_while_a_delivery_fails_is_kept():
    class Failing:
        """An address that breaks off while another thread sends."""

        @contextlib.contextmanager
        def connected(self):
            def deliver(messages):
                sender.send(Event(rank=2))
                raise OSError("gone")

            yield deliver

    sender = Sender(Failing())
    unsent = sender._unsent
    sender.send(Event(rank=1))
    until(lambda: sender._silent_until and sender._thread is None)
    unsent.append(encode(Event(rank=3)))  # by a thread that was about to append when the delivery failed
    assert [decode(message).rank for message in sender._unsent] == [1, 2, 3]


def test_a_report_does_not_wait_for_the_next_delivery(listener, heard, monkeypatch):
    """A worker may be killed as soon as Ray has its report."""
    monkeypatch.setattr(channel, "_PAUSE", 1000.0)
    sender = Sender(listener.address)
    sender.send(Saved(0, 1))
    heard.after(1)
    sender.send(Saved(0, 2))
    sender.send(Report({}))
    assert heard.after(3) == [Saved(0, 1), Saved(0, 2), Report({})]
    assert sender.flush()
