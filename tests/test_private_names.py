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
from ray.tune.schedulers import ASHAScheduler

from labkit.cluster import connection, nodes
from labkit.tune import trials

_DATA = "ray.data._internal.execution"

# {the file that uses them: {module:attribute: what is lost without it}}
RAY = {
    "labkit/cluster/connection.py": {
        "ray._raylet:AuthenticationTokenLoader.instance": "the lab's token where ray is imported already",
        "ray._raylet:Config.initialize": "the lab's settings where ray is imported already",
    },
    "labkit/cluster/nodes.py": {
        "ray.scripts.scripts:main": "`ray start` with another Python for its workers",
    },
    "labkit/cluster/forkserver": {
        "ray.actor:ActorClassID.from_random": "forks: modules with actor classes draw ids at their import",
    },
    "labkit/faults.py": {
        "ray._raylet:InnerGcsClient.drain_node": "`faults.drain_node`",
        "ray.core.generated.autoscaler_pb2:DRAIN_NODE_REASON_PREEMPTION": "the same",
    },
    "labkit/train/callbacks.py": {
        "ray.train.v2.api.data_parallel_trainer:DataParallelTrainer._register_sigint_handler": "a quick Stop",
        "ray._private.ray_logging:stdout_deduplicator.skip_re": "a worker's death in one line",
    },
    "labkit/data.py": {
        f"{_DATA}.execution_callback:ExecutionCallback.on_execution_step": "the panel of Ray Data",
        "ray.data.context:EXECUTION_CALLBACKS_ENV_VAR": "the panel of Ray Data",
    },
    "labkit/tune/trials.py": {
        "ray.air.execution.resources.placement_group:remove_placement_group": "CPUs that Ray loses",
        "ray.train._internal.storage:StorageContext.experiment_driver_staging_path": "files of a sweep",
        "ray.tune.experiment:Trial.error_file": "why a trial failed",
        "ray.tune.result:AUTO_RESULT_KEYS": "Tune's own figures are listed among the metrics",
        "ray.tune.tune:_setup_signal_catching": "an interrupted sweep counts as finished",
    },
}
OTHERS = {
    "labkit/panel/tracking/hooks.py": {
        "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": "rows and waiting of a loop under watch",
        "torch._tensor:Tensor.backward": "the live loss of a loop under watch",
        "ray.train.torch.train_loop_utils:_WrappedDataLoader.__iter__": "rows are one batch ahead",
        "ray.data.iterator:_IterableFromIterator.__iter__": "rows and waiting of a shard",
        "ray.train.v2._internal.execution.train_fn_utils:DistributedTrainFnUtils.report": "reports of a loop",
        "ray.train.v2._internal.execution.train_fn_utils:LocalTrainFnUtils.report": "the same alone",
        "torch.utils.data.dataloader:_BaseDataLoaderIter._next_index": "rows by the sampler's indexes",
    },
    "labkit/panel/tracking/rows.py": {
        "torch.utils.data.dataloader:_DatasetKind.Map": "rows by the sampler's indexes",
        "torch.utils.data._utils.fetch:_IterableDatasetFetcher": "rows of a stream with a collate_fn",
    },
    "labkit/panel/tracking/alone.py": {
        "accelerate.state:PartialState._shared_state": "workers that train alone are not told",
        "torch.distributed.distributed_c10d:_world": "the same",
        "torch.distributed:ProcessGroup._get_sequence_number_for_group": "the same",
    },
    "labkit/panel/reporters.py": {
        "ipykernel.comm:Comm._reply_subshell_for": "a click on Stop waits for the cell's end",
    },
    "labkit/schedule/ranks.py": {
        "torch._dynamo:disable": "each real rank imports it by itself, with its first optimizer: seconds",
    },
    "lessons/recipes/plan_before_you_pay.py": {
        "torch.testing._internal.distributed.fake_pg:FakeStore": "the plan of 64 ranks; the recipe says more",
    },
    "labkit/display/tracebacks.py": {
        "IPython.core.compilerop:CachingCompiler.format_code_name": "the number of a cell in a traceback",
    },
    "labkit/spark/driver.py": {
        "pyspark.java_gateway:launch_gateway": "a Spark session of the lab's own",
        "pyspark:SparkContext._active_spark_context": "an old session is not noticed",
        "pyspark:SparkContext._ensure_initialized": "a Spark session of the lab's own",
        "pyspark:SparkContext._gateway": "a new JVM for each session",
        "pyspark:SparkContext._jvm": "a new JVM for each session",
        "pyspark.sql:SparkSession._activeSession": "a new JVM for each session",
        "pyspark.sql:SparkSession._instantiatedSession": "a new JVM for each session",
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
    assert found, gone(f"text {TEXTS[path]!r} in {path}", "labkit/cluster", "a check before ray.init()")


@pytest.mark.parametrize("name", nodes._FORKED)
def test_rays_core_still_has_the_setting(name):
    library = Path(ray.__file__).parent / "_raylet.so"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.find(name.removeprefix("RAY_").encode()) >= 0
    assert found, gone(name, "labkit/cluster/nodes.py", "speed of a start")


def test_tune_still_has_what_only_its_objects_show(tmp_path):
    run = tune.RunConfig(name="new", storage_path=str(tmp_path))
    tuner = tune.Tuner(lambda config: None, run_config=run)
    asha, trial = ASHAScheduler(), tune.experiment.Trial("none", stub=True)
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
