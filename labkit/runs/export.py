"""Run records for other tools."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import RunError
from labkit.runs.browse import flat, select
from labkit.runs.figures import is_number
from labkit.runs.record import read


def to_tensorboard(
    folder: Path | str, home: Path | str | None = None, *, last: int | None = None, **filters: Any
) -> Path:
    """Write runs for TensorBoard, each into ``folder/NAME/ID``, and return `folder`.

    A run has a scalar for each metric and epoch, its settings as hyperparameters, and its record and its
    code as text. TensorBoard keeps scalars as 32-bit floats. A run that was exported before is replaced.
    Look at them with ``tensorboard --logdir FOLDER``.

    Args:
        home, last, filters: as `labkit.runs.table` takes them.

    Raises:
        RunError: there is no such run, the folder can't be written to, or tensorboardX is missing.
    """
    attempt = f"export runs for TensorBoard to {folder}"
    try:
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter  # a SummaryWriter has a thread and a queue
        from tensorboardX.proto.event_pb2 import Event
    except ImportError as error:
        raise RunError(attempt, str(error), "pip install tensorboardX") from error
    for found in select(home, last, **filters):
        run, target = read(found.folder), Path(folder, *Path(found.folder).parts[-2:])
        began = run.started.timestamp()
        # The metrics at the end, unless an epoch has reported them.
        reported = {name for entry in run.history for name in entry}
        last_ones = {name: value for name, value in run.metrics.items() if name not in reported}
        entries = [*run.history, {"epoch": max(run.epochs - 1, 0), **last_ones}]
        ends = list(itertools.accumulate(run.seconds_per_epoch, initial=began))[1:]
        settings = flat(run.config)
        names = {name for entry in entries for name, value in entry.items() if is_number(value)} - {"epoch"}
        rest = replace(run, history=[], code="")  # the scalars and the other text have these
        texts = {"record": f"```json\n{rest.to_json()}\n```", "code": f"```python\n{run.code}\n```"}
        contents = [*summary.hparams(settings, dict.fromkeys(sorted(names)))]
        contents += [summary.text(name, text) for name, text in texts.items()]
        written = [(content, 0, began) for content in contents]
        for place, entry in enumerate(entries):
            step = entry["epoch"] if isinstance(entry.get("epoch"), int) else place
            time = ends[min(place, len(ends) - 1)] if ends else began
            shown = [name for name in sorted(names & entry.keys()) if is_number(entry[name])]
            written += [(summary.scalar(name, entry[name]), step, time) for name in shown]
        try:
            target.mkdir(parents=True, exist_ok=True)
            for earlier in target.glob("*.tfevents.*"):
                earlier.unlink()
            writer = EventsWriter(str(target / "events"))
            for content, step, time in written:
                writer.write_event(Event(wall_time=time, step=step, summary=content))
            writer.close()
        except OSError as error:
            raise RunError(attempt, str(error), "name a folder that you can write to") from error
    return Path(folder)
