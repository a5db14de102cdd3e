"""All names that labkit uses although their engine does not document them, and what is lost without each.

One file per engine uses them. The versions are pinned; this test says, with the engine's version, which name
to look at after an upgrade.
"""

import importlib
import inspect
import mmap
import pkgutil
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, ResourceChangingScheduler

from labkit.cluster import connection, ends
from labkit.local import nodes
from labkit.tune import trials

_DATA = "ray.data._internal.execution"
_TRAIN = "ray.train.v2._internal"

# {the file that uses them: {module:attribute: what is lost without it}}
RAY = {
    "labkit/cluster/connection.py": {
        "ray._raylet:AuthenticationTokenLoader.instance": "the lab's token where ray is imported already",
        "ray._raylet:Config.initialize": "the lab's settings where ray is imported already",
    },
    "labkit/local/nodes.py": {
        "ray.scripts.scripts:main": "`ray start` with another Python for its workers",
    },
    "labkit/cluster/ends.py": {
        "ray._private.ray_logging:stdout_deduplicator.skip_re": "a worker's death in one line",
        f"{_TRAIN}.execution.checkpoint.validation_manager:run_validation_fn": "the same, of a validation",
        "ray.data._internal.execution.operators.map_operator:_map_task": "the same, of Ray Data's tasks",
    },
    "labkit/local/forkserver": {
        "ray.actor:ActorClassID.from_random": "forks: modules with actor classes draw ids at their import",
        "ray._private.runtime_env.context:RuntimeEnvContext.exec_worker": "each worker takes two forks",
        "ray._private.utils:update_envs": "the same",
        f"{_TRAIN}.execution.controller:TrainController._poll_workers": "0.2 s of each short run",
        f"{_TRAIN}.callbacks.placement_group_callback:PlacementGroupCleanerCallback._stop_cleaner": (
            "up to a second of each run"
        ),
        f"{_TRAIN}.execution.controller.placement_group_cleaner:PlacementGroupCleaner._monitor_loop": (
            "the same"
        ),
        f"{_TRAIN}.callbacks.preemption_callback:PreemptionCallback._stop_watcher": (
            "one process more starts with each run"
        ),
        f"{_TRAIN}.callbacks.datasets:DatasetsCallback.before_init_train_context": "the same",
        f"{_TRAIN}.callbacks.datasets:RayDatasetShardProvider.shutdown_data_executors": "the same",
    },
    "course/faults.py": {
        "ray._raylet:InnerGcsClient.drain_node": "`faults.drain_node`",
        "ray.core.generated.autoscaler_pb2:DRAIN_NODE_REASON_PREEMPTION": "the same",
    },
    "labkit/train/callbacks.py": {
        "ray.train.v2.api.data_parallel_trainer:DataParallelTrainer._register_sigint_handler": "a quick Stop",
        f"{_TRAIN}.exceptions:WorkerHealthCheckFailedError": "how a rank ended: `health_check_failure`",
    },
    "labkit/train/panel.py": {
        "ray.train.v2.api.config:RunConfig.storage_context": "a RunConfig serves one run only",
    },
    "labkit/train/hang.py": {
        "ray.train.v2._internal.execution.context:TrainContext._sync_checkpoint_dir_name_across_ranks": (
            "a rank that waits in report is shown by another function's name"
        ),
        "ray.train.v2._internal.execution.train_fn_utils:DistributedTrainFnUtils.broadcast_from_rank_zero": (
            "the same"
        ),
        "ray.train.v2._internal.execution.storage:StorageContext.persist_current_checkpoint": (
            "a rank that uploads its checkpoint is shown by another function's name"
        ),
        "torch.autograd.graph:_engine_run_backward": "a rank that waits in backward() has no word for it",
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._try_get_data": (
            "a rank that waits for a loader's process has no word for it"
        ),
    },
    "labkit/data.py": {
        f"{_DATA}.execution_callback:ExecutionCallback.on_execution_step": "the panel of Ray Data",
        "ray.data.context:EXECUTION_CALLBACKS_ENV_VAR": "the panel of Ray Data",
        f"{_DATA}.operators.input_data_buffer:InputDataBuffer": "a row without work in the panel's table",
        f"{_DATA}.interfaces.physical_operator:PhysicalOperator.get_stats": "task seconds in the table",
    },
    "labkit/tune/trials.py": {
        "ray.air.execution.resources.placement_group:remove_placement_group": "CPUs that Ray loses",
        "ray.train._internal.storage:StorageContext.experiment_driver_staging_path": "files of a sweep",
        "ray.tune.experiment:Trial.error_file": "why a trial failed",
        "ray.tune.result:AUTO_RESULT_KEYS": "Tune's own figures are listed among the metrics",
        "ray.tune.result:DONE": "trials that were ended while paused count as finished",
        "ray.tune.tune:_setup_signal_catching": "an interrupted sweep counts as finished",
    },
}
OTHERS = {
    "labkit/worker/hooks.py": {
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": "rows and waiting of a loop under watch",
        "torch._tensor:Tensor.backward": "the live loss of a loop under watch",
        "ray.train.torch.train_loop_utils:_WrappedDataLoader.__iter__": "rows are one batch ahead",
        "ray.data.iterator:_IterableFromIterator.__iter__": "rows and waiting of a shard",
        "ray.train.v2._internal.execution.train_fn_utils:DistributedTrainFnUtils.report": "reports of a loop",
        "ray.train.v2._internal.execution.train_fn_utils:LocalTrainFnUtils.report": "the same",
        "torch.utils.data.dataloader:_BaseDataLoaderIter._next_index": "rows by the sampler's indexes",
    },
    "labkit/worker/rows.py": {
        "torch.utils.data.dataloader:_DatasetKind.Map": "rows by the sampler's indexes",
        "torch.utils.data._utils.fetch:_IterableDatasetFetcher": "rows of a stream with a collate_fn",
    },
    "labkit/worker/alone.py": {
        "accelerate.state:PartialState._shared_state": "workers that train alone are not told",
        "torch.distributed.distributed_c10d:_world": "workers that train alone are not told",
        "torch.distributed:ProcessGroup._get_sequence_number_for_group": "the same",
    },
    "labkit/panel/reporters.py": {
        "ipykernel.comm:Comm._reply_subshell_for": "a click on Stop waits for the cell's end",
    },
    "course/schedule/ranks.py": {
        "torch._dynamo:disable": "each real rank imports it by itself, with its first optimizer: seconds",
    },
    "lessons/recipes/plan_before_you_pay.py": {
        "torch.testing._internal.distributed.fake_pg:FakeStore": "the plan of 64 ranks; the recipe says more",
    },
    "labkit/display/tracebacks.py": {
        "IPython.core.compilerop:CachingCompiler.format_code_name": "the number of a cell in a traceback",
    },
    "labkit/spark/panel.py": {
        "pyspark.ml.torch.distributor:TorchDistributor._train_on_dataframe": "its ranks are not followed",
    },
}
NAMES = {name: (file, lost) for file, names in (RAY | OTHERS).items() for name, lost in names.items()}

# Texts in Ray's own files that the lab looks for.
TEXTS = {
    "core/generated/gcs_service_pb2_grpc.py": connection._HEAD,
    "core/generated/ray_client_pb2_grpc.py": connection._CLIENTS,
    "scripts/scripts.py": '"Local node IP"',
    "_private/node.py": nodes._TOO_BUSY,
    "core/src/ray/gcs/gcs_server": nodes._PORT_TAKEN[0],
    "_private/services.py": nodes._PORT_TAKEN[1],
    "dashboard/http_server_head.py": nodes._PORT_TAKEN[2],
    "_private/parameter.py": nodes._PORT_TAKEN[3],
    "_private/workers/setup_worker.py": "exec_worker",
    "data/_internal/logging.py": "RAY_DATA_LOG_LEVEL",
}
# Phrases, by the files of Ray that have them: the file of labkit that looks for them, and what is lost.
_GCS, _RAYLET = "core/src/ray/gcs/gcs_server", "core/src/ray/raylet/raylet"
_CHECKPOINTS = "train/v2/_internal/execution/checkpoint/checkpoint_manager.py"
PHRASES = {
    **{
        (file, phrase): ("labkit/cluster/ends.py", "how a process ended")
        for file, phrases in {
            _GCS: ("worker process has died", "is dead because", "node has died", "Worker exit detail: "),
            _RAYLET: (ends.LOW_MEMORY, "connection error code"),
            "_raylet.so": ("exits with an exit code ",),
            "exceptions.py": ("died unexpectedly", "executing this task", "\\tpid: {cause.pid}"),
        }.items()
        for phrase in phrases
    },
    **{
        (_CHECKPOINTS, key): ("labkit/train/callbacks.py", "`reported_checkpoints`")
        for key in (
            "checkpoint_report_indices",
            "checkpoint_results",
            "checkpoint_dir_name",
            "pending_training_results",
            "validated_checkpoint_dir_names",
            "failed_validation_checkpoint_dir_names",
            "timed_out_validation_checkpoint_dir_names",
        )
    },
    ("train/v2/_internal/constants.py", "checkpoint_manager_snapshot.json"): (
        "labkit/train/callbacks.py",
        "`reported_checkpoints`",
    ),
    (_RAYLET, "A worker died or was killed"): ("labkit/cluster/ends.py", "a death in one line"),
    ("train/v2/_internal/exceptions.py", "self.health_check_failure = "): (
        "labkit/train/callbacks.py",
        "which rank is gone",
    ),
    ("train/v2/api/config.py", "ray_train_run-"): ("labkit/train/panel.py", "names of runs that have none"),
    **{
        ("train/v2/api/data_parallel_trainer.py", f"self.{name} = "): ("labkit/train/panel.py", "TrainPanel")
        for name in ("train_loop_per_worker", "train_loop_config", "validation_config", "run_config")
    },
    ("train/v2/_internal/execution/worker_group/thread_runner.py", "TrainingThread"): (
        "labkit/train/hang.py",
        "which thread runs the loop",
    ),
    ("data/_internal/execution/streaming_executor.py", "self._topology"): (
        "labkit/data.py",
        "the operators of an execution",
    ),
    ("data/block.py", "exec_stats"): ("labkit/data.py", "task seconds in the panel's table"),
    ("exceptions.py", "Original exception:\\n"): (
        "labkit/tune/trials.py",
        "the words for an exception that can't be unpickled",
    ),
    ("tune/execution/tune_controller.py", "did not include the "): (
        "labkit/tune/trials.py",
        "which metrics there are, where the one that is compared is missing",
    ),
}
# What a running pipeline's operators measure.
MEASURES = (
    "obj_store_mem_used", "row_outputs_taken", "block_outputs_taken", "bytes_outputs_taken",
    "num_tasks_running", "num_tasks_finished", "task_submission_backpressure_time",
    "task_output_backpressure_time_s",
)  # fmt: skip


def gone(name: str, file: str, lost: str) -> str:
    package = name.partition(":")[0].partition(".")[0].lower()
    return f"{package} {version(package)} has no {name}: {lost}. See {file}"


@pytest.mark.parametrize("name", NAMES)
def test_is_still_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(gone(name, *NAMES[name]))


@pytest.mark.parametrize("measure", MEASURES)
def test_ray_datas_operators_still_measure(measure):
    name = f"{_DATA}.interfaces.op_runtime_metrics:OpRuntimeMetrics"
    metrics = pkgutil.resolve_name(name)
    known = {*metrics.__dataclass_fields__, *dir(metrics)}
    assert measure in known, gone(f"{name}.{measure}", "labkit/data.py", "a column of DataPanel")


@pytest.mark.parametrize("path", TEXTS)
def test_a_text_is_still_in_rays_files(path):
    file = Path(ray.__file__).parent / path
    found = file.is_file() and TEXTS[path].encode() in file.read_bytes()
    assert found, gone(f"ray.{path}: {TEXTS[path]!r}", "labkit/cluster", "a check before ray.init()")


@pytest.mark.parametrize(("path", "phrase"), PHRASES)
def test_a_phrase_is_still_in_rays_files(path, phrase):
    file, lost = PHRASES[path, phrase]
    source = Path(ray.__file__).parent / path
    with source.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.find(phrase.encode()) >= 0
    assert found, gone(f"ray.{path}: {phrase!r}", file, lost)


@pytest.mark.parametrize("name", connection.FORKED)
def test_rays_core_still_has_the_setting(name):
    library = Path(ray.__file__).parent / "_raylet.so"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.find(name.removeprefix("RAY_").encode()) >= 0
    assert found, gone(name, "labkit/cluster/connection.py", "speed of a start")


def test_tune_still_has_what_only_its_objects_show(tmp_path):
    run = tune.RunConfig(name="new", storage_path=str(tmp_path))
    tuner = tune.Tuner(lambda config: None, run_config=run)
    asha, trial = ASHAScheduler(), tune.experiment.Trial("none", stub=True)
    hyperband = HyperBandScheduler(metric="score", mode="max")
    bracket = hyperband._create_bracket(1)
    owners = {
        tuner: ["_local_tuner"],
        tuner._local_tuner: [
            "_tune_config",
            "_run_config",
            "_is_restored",
            "param_space",
            "converted_trainable",
        ],
        asha: ["_metric", "_mode", "_max_t", "_brackets", "_time_attr"],
        tune.search.ConcurrencyLimiter(tune.search.Searcher("loss", "min"), 1): ["_metric", "_mode"],
        asha._brackets[0]: ["_rungs"],
        hyperband: ["_trial_info", "_time_attr"],
        bracket: ["_halves", "_cumul_r"],
        ResourceChangingScheduler(asha): ["_base_scheduler"],
        tune.with_resources(lambda config: None, {"CPU": 1}): ["_resources"],
        trial: ["run_metadata", "storage", "placement_group_factory"],
        trial.run_metadata: ["last_result"],
    }
    assert {"param_space", "converted_trainable"} <= set(dir(tuner._local_tuner))
    missing = [name for owner, names in owners.items() for name in names if not hasattr(owner, name)]
    names = ("execution.tune_controller", "tune", "utils.util", "logger.logger", "experiment.trial")
    names += ("analysis.experiment_analysis",)
    sources = [inspect.getsource(importlib.import_module(f"ray.tune.{name}")) for name in names]
    texts = [trials.STATE_FILES, "Failure # ", *trials._NOISE]
    missing += [text for text in texts if not any(text in source for source in sources)]
    assert not missing, gone(str(missing), "labkit/tune/trials.py", "details of a sweep")
