"""TensorBoard

Group: Trackers by `live=`
Packages: tensorboardX, tensorboard
Asked: epochs, loss
Guess: all
Line: the recipe in [Past runs](runs.md#send-a-run-to-another-tool)
"""

from tensorboardX import SummaryWriter

from benchmarks._works_with import tracked


def measured(storage):
    folder = str(storage / "tensorboard")
    writer, written = SummaryWriter(folder, flush_secs=5), 0

    def send(record):
        nonlocal written
        for entry in record.history[written:]:
            writer.add_scalar("loss", entry["loss"], entry["epoch"])
        written = len(record.history)
        if record.state != "running":
            writer.close()

    def read():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(folder)
        events.Reload()
        return [(event.step, event.value) for event in events.Scalars("loss")]

    return tracked.measured("tensorboard", send, read)
