"""Run records for other tools."""

import itertools
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
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams
    except ImportError as error:
        raise RunError(attempt, str(error), "pip install tensorboardX") from error
    for found in select(home, last, **filters):
        run, target = read(found.folder), Path(folder, *Path(found.folder).parts[-2:])
        for earlier in target.glob("*.tfevents.*"):
            earlier.unlink()
        # The metrics at the end, unless an epoch has reported them.
        reported = {name for entry in run.history for name in entry}
        rest = {name: value for name, value in run.metrics.items() if name not in reported}
        entries = [*run.history, {"epoch": max(run.epochs - 1, 0), **rest}]
        ends = list(itertools.accumulate(run.seconds_per_epoch, initial=run.started.timestamp()))[1:]
        settings = flat(run.config)
        names = {name for entry in entries for name, value in entry.items() if is_number(value)} - {"epoch"}
        try:
            with SummaryWriter(str(target)) as writer:
                for summary in hparams(settings, dict.fromkeys(sorted(names))):
                    writer.file_writer.add_summary(summary)
                for place, entry in enumerate(entries):
                    step = entry["epoch"] if isinstance(entry.get("epoch"), int) else place
                    time = ends[min(place, len(ends) - 1)] if ends else run.started.timestamp()
                    for name in names & entry.keys():
                        if is_number(entry[name]):
                            writer.add_scalar(name, entry[name], step, walltime=time)
                writer.add_text("record", f"```json\n{run.to_json()}\n```")
                writer.add_text("code", f"```python\n{run.code}\n```")
        except OSError as error:
            raise RunError(attempt, str(error), "name a folder that you can write to") from error
    return Path(folder)
