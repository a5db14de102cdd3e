"""All names that labkit uses although their engine does not document them, and what is lost without each.

One file per engine uses them. The versions are pinned; this test says, with the engine's version, which name
to look at after an upgrade.
"""

import mmap
import pkgutil
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
import torch

from labkit import _jupyter, _ray, _spark, _tune, data
from labkit.cluster import connection
from labkit.local import nodes
from labkit.local.forkserver import services

_TRAIN = "ray.train.v2._internal"

# {the file that uses them: {module:attribute: what is lost without it}}
RAY = {
    "labkit/_ray.py": _ray.NAMES,
    "labkit/local/nodes.py": {
        "ray.scripts.scripts:main": "`ray start` with another Python for its workers",
    },
    "labkit/local/forkserver/services.py": {
        "ray._private.node:Node.start_ray_processes": "a node takes a second longer to start",
        "ray._private.node:Node.plasma_store_socket_name": "the same",
        "ray._private.services:wait_for_node": "the same",
        "ray.scripts.scripts:get_ray_client_dependency_error": "a server without a use imports ray twice",
        "ray.dashboard.head": "Ray's own programs import their modules by themselves: a second or two",
        "ray.dashboard.agent": "the same",
        "ray.autoscaler._private.monitor": "the same",
        "ray._private.runtime_env.agent.runtime_env_agent": "the same",
        "ray.dashboard.utils:get_all_modules": "the same",
        "ray.dashboard.subprocesses.module:SubprocessModule": "the same",
        "ray.dashboard.consts:PARENT_HEALTH_CHECK_BY_PIPE": "an agent takes its raylet for dead, and ends it",
        "ray._raylet:setproctitle": "`ps` and labkit stop show forks by another name",
        "multiprocessing.util:spawnv_passfds": "the dashboard imports all of its modules twice",
    },
    "labkit/local/forkserver": {
        "ray.actor:ActorClassID.from_random": "forks: modules with actor classes draw ids at their import",
        "ray._private.runtime_env.context:RuntimeEnvContext.exec_worker": "each worker takes two forks",
        "ray._private.utils:update_envs": "the same",
        f"{_TRAIN}.execution.controller:TrainController._poll_workers": "0.2 s of each short run",
        f"{_TRAIN}.execution.worker_group:WorkerGroup._poll_workers_and_collect_errors": (
            "a rank that lost its peer may be shown in place of the peer, in the first two seconds of a run"
        ),
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
        f"{_TRAIN}.execution.controller:TrainController.abort": "a quick Stop",
        f"{_TRAIN}.exceptions:WorkerHealthCheckFailedError": "how a rank ended: `health_check_failure`",
        f"{_TRAIN}.execution.worker_group.poll:WorkerGroupPollStatus.get_error_string": (
            "where several ranks failed, the first one's traceback may be another rank's"
        ),
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
    "labkit/_tune.py": _tune.NAMES,
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
    "labkit/_jupyter.py": _jupyter.NAMES,
    "labkit/_spark.py": _spark.NAMES,
}
NAMES = {name: (file, lost) for file, names in (RAY | OTHERS).items() for name, lost in names.items()}

# Phrases, by the files of Ray that have them: the file of labkit that looks for them, and what is lost.
_CHECKPOINTS = "train/v2/_internal/execution/checkpoint/checkpoint_manager.py"
_NODES = ("labkit/local/nodes.py", "why a node doesn't start, or a second try")
PHRASES = {
    ("scripts/scripts.py", "ray start --address='{}'"): _NODES,
    ("_private/node.py", nodes._TOO_BUSY): _NODES,
    ("core/src/ray/gcs/gcs_server", nodes._PORT_TAKEN[0]): _NODES,
    ("_private/services.py", nodes._PORT_TAKEN[1]): _NODES,
    ("dashboard/http_server_head.py", nodes._PORT_TAKEN[2]): _NODES,
    ("_private/parameter.py", nodes._PORT_TAKEN[3]): _NODES,
    ("_private/workers/setup_worker.py", "exec_worker"): (
        "labkit/local/forkserver",
        "a worker takes two forks",
    ),
    **{
        (program, "__main__"): ("labkit/local/forkserver/services.py", "it is a new Python")
        for program in services.PROGRAMS
    },
    **{
        ("_raylet.so", name.removeprefix("RAY_")): ("labkit/cluster/connection.py", "speed of a start")
        for name in connection.FORKED
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
    # Attributes of objects that only a run has: without one, each run in a lab's own cluster fails.
    **{
        (f"train/v2/_internal/{file}.py", f"self.{name}"): (
            "labkit/local/forkserver/shorter_start.py",
            "each run in a cluster that the lab starts fails: leave out the function that has it",
        )
        for file, names in {
            "execution/controller/controller": ("_health_check_interval_s = ", "_worker_group"),
            "execution/controller/placement_group_cleaner": ("_stop_event = ", "_check_interval_s = "),
            "callbacks/placement_group_callback": ("_cleaner",),
            "callbacks/preemption_callback": ("_poll_interval_s",),
            "callbacks/datasets": ("_datasets", "_dataset_names = ", "_cached_dataset_shards"),
        }.items()
        for name in names
    },
    # Attributes of Tune's objects.
    **{
        (f"tune/{file}.py", name): ("labkit/_tune.py", "details of a sweep")
        for file, names in {
            "tuner": ("self._local_tuner = ",),
            "impl/tuner_internal": (
                "self._tune_config = ",
                "self._run_config = ",
                "self._is_restored = ",
                "def param_space(",
                "def converted_trainable(",
                "self._converted_trainable = ",
            ),
            "schedulers/async_hyperband": (
                "self._metric = ",
                "self._mode = ",
                "self._max_t = ",
                "self._time_attr = ",
                "self._brackets = ",
                "self._rungs = ",
            ),
            "schedulers/hyperband": (
                "self._trial_info = ",
                "self._time_attr = ",
                "self._halves = ",
                "self._cumul_r = ",
            ),
            "schedulers/resource_changing_scheduler": ("self._base_scheduler = ",),
            "search/searcher": ("self._metric = ", "self._mode = "),
            "trainable/util": ("trainable._resources = ",),
            "experiment/trial": (
                "self.run_metadata = ",
                "self.storage = ",
                "self.placement_group_factory = ",
            ),
            "trainable/metadata": ("self.last_result = ",),
        }.items()
        for name in names
    },
    **{place: ("labkit/_ray.py", lost) for place, lost in _ray.TEXTS.items()},
    **{place: ("labkit/_tune.py", lost) for place, lost in _tune.TEXTS.items()},
}


def gone(name: str, file: str, lost: str) -> str:
    package = name.partition(":")[0].partition(".")[0].lower()
    return f"{package} {version(package)} has no {name}: {lost}. See {file}"


@pytest.mark.parametrize("name", NAMES)
def test_is_still_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(gone(name, *NAMES[name]))


MEASURES = sorted(set(re.findall(r"metrics\.(\w+)", Path(data.__file__).read_text())))


@pytest.mark.parametrize("measure", MEASURES)
def test_ray_datas_operators_still_measure(measure):
    name = "ray.data._internal.execution.interfaces.op_runtime_metrics:OpRuntimeMetrics"
    metrics = pkgutil.resolve_name(name)
    names = {*metrics.__dataclass_fields__, *dir(metrics)}
    assert measure in names, gone(f"{name}.{measure}", "labkit/data.py", "a column of DataPanel")


@pytest.mark.parametrize(("path", "phrase"), PHRASES)
def test_a_phrase_is_still_in_rays_files(path, phrase):
    file, lost = PHRASES[path, phrase]
    source = Path(ray.__file__).parent / path
    with source.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        there = content.find(phrase.encode()) >= 0
    assert there, gone(f"ray.{path}: {phrase!r}", file, lost)


def test_torchs_loaders_still_have_what_only_their_iterators_show():
    loader = torch.utils.data.DataLoader([1, 2], batch_size=2)
    iterator = iter(loader)
    owners = {
        loader: ["_auto_collation", "_index_sampler"],
        iterator: ["_dataset_kind", "_dataset_fetcher", "_collate_fn"],
    }
    missing = [name for owner, names in owners.items() for name in names if not hasattr(owner, name)]
    assert not missing, gone(f"torch.utils.data {missing}", "labkit/worker/rows.py", "rows")


@pytest.mark.parametrize("text", [_tune.STATE_FILES, _tune.FAILURE, *_tune.NOISE])
def test_tune_still_writes(text):
    folder = Path(ray.__file__).parent / "tune"
    files = ("execution/tune_controller", "tune", "utils/util", "logger/logger", "experiment/trial")
    files += ("analysis/experiment_analysis",)
    there = any(text in (folder / f"{file}.py").read_text() for file in files)
    assert there, gone(f"ray.tune: {text!r}", "labkit/_tune.py", "details of a sweep")
