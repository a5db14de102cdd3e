"""What comes from outside gets its types, or is dropped; nothing of it ever raises."""

import math

import pytest

from labkit.panel.tracking import events

STEP = {"kind": "step", "epoch": 1, "step": 2, "rows": 3, "seconds": 4.5, "waiting": 0.5}


@pytest.mark.parametrize("event", [None, 7, "step", [], [1], {}, {"kind": None}, {"kind": ["step"]}])
def test_what_is_no_event(event):
    assert events.read(event) is None


def test_an_event_has_what_all_have():
    known = events.read({"kind": "worker"})
    assert (known["rank"], known["pid"], known["node"]) == (0, 0, "")
    assert known["at"] > 1e9
    event = {"kind": "worker", "rank": 3, "pid": 17, "node": "n", "at": 2.5}
    assert events.read({**event, "more": 1}) == event


@pytest.mark.parametrize("missing", sorted(STEP.keys() - {"kind"}))
def test_a_step_without_what_it_needs_is_dropped(missing):
    assert events.read(STEP) is not None
    assert events.read({name: value for name, value in STEP.items() if name != missing}) is None
    for wrong in (None, "2", -1, math.nan, math.inf, 10**400, [], {}, object()):
        assert events.read({**STEP, missing: wrong}) is None


def test_metrics_keep_numbers_and_short_texts():
    metrics = {
        "loss": 0.5, "nan": math.nan, "inf": math.inf, "none": None, "hit": True, "n": 3, "huge": 10**400,
        "text": "x" * 5000, "list": [1, 2], "dict": {"a": 1}, 7: "seven", "bad\x00name": 1,
    }  # fmt: skip
    known = events.read({**STEP, "metrics": metrics})["metrics"]
    assert (known["loss"], known["none"], known["hit"], known["n"]) == (0.5, None, True, 3)
    assert math.isnan(known["nan"]) and known["inf"] == math.inf
    assert len(known["text"]) == 100 and len(known["huge"]) == 100
    assert (known["list"], known["dict"], known["7"]) == ("[1, 2]", "{'a': 1}", "seven")
    assert known["bad\ufffdname"] == 1
    for nothing in ([{"a": 1}], None, "x"):
        assert "metrics" not in events.read({"kind": "report", "metrics": nothing})


def test_texts_can_be_shown():
    text = "a\x1b[1;31mred\x1b[0m\tb\r\nc\x00\x07\udc80\ud800 é😀\x85 end"
    shown = events.read({"kind": "print", "text": text})["text"]
    assert shown.startswith("ared\tb\nc\ufffd\ufffd\ufffd\ufffd é😀\ufffd end")
    shown.encode()
    assert len(events.read({"kind": "failure", "text": "x" * 10**6})["text"]) == 10_000
    assert len(events.read({"kind": "phase", "name": "x" * 10**6})["name"]) == 100
    assert events.read({"kind": "print", "text": 7})["text"] == "7"
    assert events.read({"kind": "print", "text": None}) is None
