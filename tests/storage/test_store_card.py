"""What a store holds, in a line and as a card."""

from labkit.errors import StorageUnreachable
from labkit.storage.card import Bucket, draw, summary


def bucket(name="lab", objects=3, size=1234, **options):
    return Bucket(name=name, objects=objects, bytes=size, **options)


def test_a_line():
    assert summary([]) == "0 buckets, 0 objects, 0 B"
    assert summary([bucket()]) == "1 bucket, 3 objects, 1.2 kB"
    assert summary([bucket(), bucket(objects=10_000, size=5 * 10**9, more=True)]) == (
        "2 buckets, 10,003 objects or more, 5.0 GB"
    )


def test_a_card():
    html = draw("http://host:1", "the lab's own, rclone", [bucket("a<b", more=True)])
    assert "a&lt;b" in html and "3 or more" in html and "running" in html and "http://host:1" in html
    assert "lk-card" in html and "--jp-content-font-color1" in html  # the look of every card


def test_a_card_of_a_store_that_fails_says_why_and_what_to_do():
    html = draw("http://host:1", "x", StorageUnreachable("list", "nobody <listens>", "start it"))
    assert "not usable" in html and "nobody &lt;listens&gt;; start it" in html


def test_a_card_of_a_store_that_was_stopped():
    assert "stopped" in draw("http://host:1", "x", None)
