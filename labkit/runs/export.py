"""Run records for other tools, of past runs or while they are running.

>>> runs.to_tensorboard("tensorboard", name="10-fruit")
>>> panel = TrainPanel("10-fruit", live=[runs.MLflow("mlflow")])
"""

import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from labkit.errors import RunError
from labkit.runs.browse import flat, select
from labkit.runs.figures import is_number
from labkit.runs.record import RunRecord, folder_of, read
from labkit.settings import variables_set

# MLflow reports to its makers by default, and says at length that it makes tables.
_MLFLOW_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
_MLFLOW_STATES = {"running": "RUNNING", "finished": "FINISHED", "stopped": "KILLED"}  # others: FAILED


class _Export:
    """Base of exports: `begin` a run, `add` what is new to it at each call, `end` it when it is over."""

    tool: ClassVar[str]
    packages: ClassVar[str]

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        self._begun: dict[str, tuple[Any, int]] = {}  # run id → (what `begin` returned, scalars written)
        with self._explained():
            self.prepare()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __call__(self, run: RunRecord) -> None:
        """Write what the record has, and did not have in an earlier call.

        Raises:
            RunError: the folder can't be written to.
        """
        scalars = _scalars(run)
        with self._explained():
            target, done = self._begun.get(run.run_id) or (self.begin(run), 0)
            self.add(target, scalars[done:])
            self._begun[run.run_id] = target, len(scalars)
            if run.state != "running":
                self.end(target, run, scalars)
                del self._begun[run.run_id]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        attempt = f"export runs for {self.tool} to {self.folder}"
        try:
            yield
        except ImportError as error:
            raise RunError(attempt, str(error), f"pip install {self.packages}") from error
        except OSError as error:
            raise RunError(attempt, str(error), "name a folder that you can write to") from error


class TensorBoard(_Export):
    """Writes runs for TensorBoard, each into ``folder/NAME/ID``.

    A run has a scalar for each metric and epoch and, when it is over, its settings as hyperparameters, and
    its record and its code as text. TensorBoard keeps scalars as 32-bit floats. A run that was exported
    before is replaced. Look at them with ``tensorboard --logdir FOLDER``.

    Raises:
        RunError: tensorboardX is missing.
    """

    tool, packages = "TensorBoard", "tensorboardX"

    def prepare(self) -> None:
        import tensorboardX  # noqa: F401

    def begin(self, run: RunRecord) -> Any:
        from tensorboardX.event_file_writer import EventsWriter  # a SummaryWriter has a thread and a queue

        target = self.folder.joinpath(*folder_of("", run.name, run.run_id).parts[-2:])
        target.mkdir(parents=True, exist_ok=True)
        for earlier in target.glob("*.tfevents.*"):
            earlier.unlink()
        return EventsWriter(str(target / "events"))

    def add(self, target: Any, scalars: list[tuple[str, float, int, float]]) -> None:
        from tensorboardX import summary

        self._write(target, ((summary.scalar(name, value), *when) for name, value, *when in scalars))

    def end(self, target: Any, run: RunRecord, scalars: list[tuple[str, float, int, float]]) -> None:
        from tensorboardX import summary

        rest = replace(run, history=[], code="", called="")  # the scalars and the other text have these
        texts = {"record": f"```json\n{rest.to_json()}\n```", "code": f"```python\n{run.all_code}\n```"}
        names = sorted({name for name, *_ in scalars})
        contents = [*summary.hparams(flat(run.config), dict.fromkeys(names))]
        contents += [summary.text(name, text) for name, text in texts.items()]
        self._write(target, ((content, 0, run.started.timestamp()) for content in contents))
        target.close()

    @staticmethod
    def _write(target: Any, contents: Iterator[tuple[Any, int, float]]) -> None:
        from tensorboardX.proto.event_pb2 import Event

        for content, step, time in contents:
            target.write_event(Event(wall_time=time, step=step, summary=content))
        target.flush()


class MLflow(_Export):
    """Writes runs into an MLflow store in `folder`, each into the experiment of its name.

    A run has its metrics for each epoch, its settings as parameters and, when it is over, its commit and tags
    as tags, its note, and its record and its code as artifacts. A run that was exported before is replaced.
    MLflow keeps an infinite metric as the largest float. Look at them with
    ``mlflow server --backend-store-uri sqlite:///FOLDER/mlflow.db``, which needs all of MLflow.

    Raises:
        RunError: the folder can't be written to, or mlflow-skinny is missing.
    """

    tool, packages = "MLflow", "mlflow-skinny sqlalchemy alembic"

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with super()._explained():
            try:
                yield
            except Exception as error:
                if type(error).__name__ != "MlflowException":  # it can't be imported where MLflow is missing
                    raise
                raise OSError(str(error)) from error

    def prepare(self) -> None:
        with variables_set(_MLFLOW_QUIET):
            from mlflow import MlflowClient

            self.folder.mkdir(parents=True, exist_ok=True)
            self._client = MlflowClient(f"sqlite:///{self.folder / 'mlflow.db'}")

    def begin(self, run: RunRecord) -> str:
        from mlflow.entities import Param

        client = self._client
        if experiment := client.get_experiment_by_name(run.name):
            experiment = experiment.experiment_id
            for earlier in client.search_runs([experiment], f"tags.`labkit.id` = '{run.run_id}'"):
                client.delete_run(earlier.info.run_id)
        else:
            place = (self.folder / "artifacts").as_uri()
            experiment = client.create_experiment(run.name, artifact_location=place)
        began, tags = int(1000 * run.started.timestamp()), {"labkit.id": run.run_id}
        made = client.create_run(experiment, began, tags, run.run_id).info.run_id
        params = [Param(_mlflow_name(name), str(value)[:6000]) for name, value in flat(run.config).items()]
        for start in range(0, len(params), 100):  # MLflow takes no more at a time
            client.log_batch(made, params=params[start : start + 100])
        return made

    def add(self, target: str, scalars: list[tuple[str, float, int, float]]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_mlflow_name(name), float(value), int(1000 * time), step)
            for name, value, step, time in scalars
        ]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(target, metrics=metrics[start : start + 1000])

    def end(self, target: str, run: RunRecord, scalars: list[tuple[str, float, int, float]]) -> None:
        from mlflow.entities import RunTag

        tags = {"labkit.tags": " ".join(run.tags), "mlflow.source.git.commit": run.commit or ""}
        tags["mlflow.note.content"] = run.note
        self._client.log_batch(target, tags=[RunTag(name, value) for name, value in tags.items()])
        self._client.log_text(target, replace(run, code="", called="").to_json(), "record.json")
        self._client.log_text(target, run.all_code, "code.py")
        ended = int(1000 * (run.started.timestamp() + (run.seconds_total or 0)))
        self._client.set_terminated(target, _MLFLOW_STATES.get(run.state, "FAILED"), ended)


def to_tensorboard(
    folder: Path | str, home: Path | str | None = None, *, last: int | None = None, **filters: Any
) -> Path:
    """Write past runs as `TensorBoard` does, and return the absolute path of `folder`.

    Args:
        home, last, filters: as `labkit.runs.table` takes them.

    Raises:
        RunError: there is no such run, the folder can't be written to, or tensorboardX is missing.
    """
    return _export(TensorBoard, folder, select(home, last, **filters))


def to_mlflow(
    folder: Path | str, home: Path | str | None = None, *, last: int | None = None, **filters: Any
) -> Path:
    """Write past runs as `MLflow` does, and return the absolute path of `folder`.

    Args:
        home, last, filters: as `labkit.runs.table` takes them.

    Raises:
        RunError: there is no such run, the folder can't be written to, or mlflow-skinny is missing.
    """
    return _export(MLflow, folder, select(home, last, **filters))


def _export(kind: type[_Export], folder: Path | str, found: list[RunRecord]) -> Path:
    write = kind(folder)
    for run in found:
        write(read(run.folder))
    return write.folder


def _mlflow_name(name: str) -> str:
    """The name with the letters, digits and signs that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


def _scalars(run: RunRecord) -> list[tuple[str, float, int, float]]:
    """(name, value, step, seconds since 1970) of what a run has measured.

    A step is an epoch, from 0. When a run is over, its metrics count to the last epoch, unless an epoch has
    them.
    """
    entries = list(run.history)
    if run.state != "running":
        reported = {name for entry in run.history for name in entry}
        last_ones = {name: value for name, value in run.metrics.items() if name not in reported}
        entries.append({"epoch": max(run.epochs - 1, 0), **last_ones})
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
