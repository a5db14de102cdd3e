"""MLflow

Group: Trackers by `live=`
Packages: mlflow-skinny
Asked: epochs, loss
Guess: all
Line: the recipe in [Past runs](runs.md#send-a-run-to-another-tool)
Note: `mlflow` itself asks for versions that the lab's constraints exclude. The row uses
    `mlflow-skinny`, which is MLflow without its user interface.
"""

import mlflow

from benchmarks._works_with import tracked


def measured(storage):
    mlflow.set_tracking_uri(f"sqlite:///{storage}/mlflow.db")
    experiment = mlflow.set_experiment("own")

    def send(record):
        if record.state == "running":
            return
        with mlflow.start_run(experiment_id=experiment.experiment_id, run_name=record.run_id):
            mlflow.log_params(record.config)
            for entry in record.history:
                mlflow.log_metrics({"loss": entry["loss"]}, step=entry["epoch"])

    def read():
        client = mlflow.MlflowClient()
        (run,) = client.search_runs([experiment.experiment_id])
        return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")]

    return tracked.measured("mlflow", send, read)
