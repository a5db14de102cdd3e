"""The private names of Ray Train and Ray Data that the panels use: which of them this Ray still has.

Where one is gone the panels show less and the training runs (see the other tests); this says what to look at.
"""

import pkgutil

import pytest
import ray

_TRAIN, _DATA = "ray.train.v2._internal", "ray.data._internal.execution"
_METRICS = f"{_DATA}.interfaces.op_runtime_metrics:OpRuntimeMetrics"

NAMES = {
    f"{_TRAIN}.execution.callback:ControllerCallback.after_controller_start": "statuses of checkpoints",
    f"{_TRAIN}.execution.callback:ControllerCallback.before_controller_shutdown": "last statuses",
    f"{_TRAIN}.execution.callback:ControllerCallback.before_controller_abort": "last statuses",
    f"{_TRAIN}.execution.callback:TrainContextCallback.on_checkpoint_transfer": "seconds of uploads",
    f"{_TRAIN}.execution.controller:TrainController.get_all_reported_checkpoints": "statuses of checkpoints",
    f"{_TRAIN}.execution.train_fn_utils:LocalTrainFnUtils.report": "metrics of a rehearsal",
    "ray._private.worker:print_to_stdstream": "a worker's death in one line",
    f"{_DATA}.execution_callback:ExecutionCallback.on_execution_step": "the panel of Ray Data",
    f"{_DATA}.streaming_executor_state:OpState.total_enqueued_input_blocks": "waiting blocks",
    "ray.data.context:EXECUTION_CALLBACKS_ENV_VAR": "the panel of Ray Data",
}
MEASURES = (
    "obj_store_mem_used", "row_outputs_taken", "block_outputs_taken", "bytes_outputs_taken",
    "num_tasks_running", "num_tasks_finished", "task_submission_backpressure_time",
    "task_output_backpressure_time_s",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_is_still_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(f"Ray {ray.__version__} has no {name}: the panels lose {NAMES[name]}")


@pytest.mark.parametrize("measure", MEASURES)
def test_a_measure_of_ray_datas_operators_is_still_there(measure):
    metrics = pkgutil.resolve_name(_METRICS)
    known = {*metrics.__dataclass_fields__, *dir(metrics)}
    assert measure in known, f"Ray {ray.__version__} has no {_METRICS}.{measure}: DataPanel shows nothing"
