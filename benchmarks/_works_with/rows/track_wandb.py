"""Weights & Biases, offline

Group: Trackers by `live=`
Packages: wandb
Asked: epochs, loss
Guess: all
Line: `wandb.init(mode="offline")` before the run; a function that logs the new entries, and finishes at
    the end
"""

import json

import wandb

from benchmarks._works_with import tracked


def measured(storage):
    run = wandb.init(project="own", mode="offline", dir=str(storage), settings=wandb.Settings(silent=True))
    written = 0

    def send(record):
        nonlocal written
        for entry in record.history[written:]:
            run.log({"loss": entry["loss"]}, step=entry["epoch"])
        written = len(record.history)
        if record.state != "running":
            run.finish()

    def read():
        from wandb.proto.wandb_internal_pb2 import Record

        (path,) = storage.glob("wandb/offline-run-*/*.wandb")
        rest = path.read_bytes()[7:]  # a header, then records of LevelDB's log: sum, length, kind, data
        while rest:
            length = int.from_bytes(rest[4:6], "little")
            items = Record.FromString(rest[7 : 7 + length]).history.item
            entry = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            if "loss" in entry:
                yield entry["_step"], entry["loss"]
            rest = rest[7 + length :]

    return tracked.measured("wandb", send, read)
