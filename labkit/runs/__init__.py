"""Run records: written, found, shown, compared, exported, reported; and what other runs would cost."""

from labkit.faces import face

__getattr__, __dir__, __all__ = face(
    __name__,
    browse=("best", "get", "latest", "plot", "table"),
    comparison=("Comparison", "compare"),
    edit=("delete", "note", "tag"),
    export=("MLflow", "TensorBoard", "to_mlflow", "to_tensorboard"),
    payoff=("Payoff", "will_it_pay"),
    record=("RunRecord",),
    reporting=("report",),
    restore=("Rerun", "rerun"),
)
