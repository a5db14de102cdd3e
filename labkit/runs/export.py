"""Run records for other tools."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import RunError
from labkit.runs.browse import flat, select
from labkit.runs.figures import is_number
from labkit.runs.record import RunRecord, read
from labkit.settings import variables_set

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow reports to its makers by default, and says at length that it makes tables.
_MLFLOW_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
_MLFLOW_STATES = {"running": "RUNNING", "finished": "FINISHED", "stopped": "KILLED"}  # others: FAILED


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
        began, scalars = run.started.timestamp(), _scalars(run)
        rest = replace(run, history=[], code="", called="")  # the scalars and the other text have these
        texts = {"record": f"```json\n{rest.to_json()}\n```", "code": f"```python\n{run.all_code}\n```"}
        names = sorted({name for name, *_ in scalars})
        contents = [*summary.hparams(flat(run.config), dict.fromkeys(names))]
        contents += [summary.text(name, text) for name, text in texts.items()]
        written = [(content, 0, began) for content in contents]
        written += [(summary.scalar(name, value), step, time) for name, value, step, time in scalars]
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


def to_mlflow(
    folder: Path | str, home: Path | str | None = None, *, last: int | None = None, **filters: Any
) -> Path:
    """Write runs into an MLflow store in `folder`, each into the experiment of its name; return `folder`.

    A run has its metrics for each epoch, its settings as parameters, its commit and tags as tags, its note,
    and its record and its code as artifacts. A run that was exported before is replaced. MLflow keeps an
    infinite metric as the largest float. Look at them with
    ``mlflow server --backend-store-uri sqlite:///FOLDER/mlflow.db``, which needs all of MLflow.

    Args:
        home, last, filters: as `labkit.runs.table` takes them.

    Raises:
        RunError: there is no such run, the folder can't be written to, or mlflow-skinny is missing.
    """
    attempt, folder = f"export runs for MLflow to {folder}", Path(folder).absolute()
    found = select(home, last, **filters)
    with variables_set(_MLFLOW_QUIET):
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise RunError(attempt, str(error), "pip install mlflow-skinny sqlalchemy alembic") from error
        try:
            folder.mkdir(parents=True, exist_ok=True)
            client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
            for run in found:
                _to_mlflow(client, read(run.folder), folder / "artifacts")
        except (OSError, MlflowException) as error:
            raise RunError(attempt, str(error), "name a folder that you can write to") from error
    return folder


def _to_mlflow(client: "MlflowClient", run: RunRecord, artifacts: Path) -> None:
    from mlflow.entities import Metric, Param

    if experiment := client.get_experiment_by_name(run.name):
        experiment = experiment.experiment_id
        for earlier in client.search_runs([experiment], f"tags.`labkit.id` = '{run.run_id}'"):
            client.delete_run(earlier.info.run_id)
    else:
        experiment = client.create_experiment(run.name, artifact_location=artifacts.as_uri())
    began = run.started.timestamp()
    tags = {"labkit.id": run.run_id, "labkit.tags": " ".join(run.tags)}
    tags |= {"mlflow.source.git.commit": run.commit or "", "mlflow.note.content": run.note}
    made = client.create_run(experiment, int(1000 * began), tags, run.run_id).info.run_id
    metrics = [
        Metric(_mlflow_name(name), float(value), int(1000 * time), step)
        for name, value, step, time in _scalars(run)
    ]
    params = [Param(_mlflow_name(name), str(value)[:6000]) for name, value in flat(run.config).items()]
    for start in range(0, len(metrics), 1000):  # MLflow takes no more at a time
        client.log_batch(made, metrics=metrics[start : start + 1000])
    for start in range(0, len(params), 100):
        client.log_batch(made, params=params[start : start + 100])
    client.log_text(made, replace(run, code="", called="").to_json(), "record.json")
    client.log_text(made, run.all_code, "code.py")
    ended = int(1000 * (began + (run.seconds_total or 0)))
    client.set_terminated(made, _MLFLOW_STATES.get(run.state, "FAILED"), ended)


def _mlflow_name(name: str) -> str:
    """The name with the letters, digits and signs that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _scalars(run: RunRecord) -> list[tuple[str, float, int, float]]:
    """(name, value, step, seconds since 1970) of what a run has measured.

    A step is an epoch, from 0. The metrics at the end count to the last epoch, unless an epoch has them.
    """
    reported = {name for entry in run.history for name in entry}
    last_ones = {name: value for name, value in run.metrics.items() if name not in reported}
    entries = [*run.history, {"epoch": max(run.epochs - 1, 0), **last_ones}]
    began = run.started.timestamp()
    ends = list(itertools.accumulate(run.seconds_per_epoch, initial=began))[1:]
    scalars = []
    for place, entry in enumerate(entries):
        step = entry["epoch"] if isinstance(entry.get("epoch"), int) else place
        time = ends[min(place, len(ends) - 1)] if ends else began
        for name in sorted(entry):
            if name != "epoch" and is_number(entry[name]):
                scalars.append((name, entry[name], step, time))
    return scalars
