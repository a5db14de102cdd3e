"""What the lab uses of Ray's core and of Ray Data although Ray does not document it.

Written for Ray 2.60. `NAMES` and `TEXTS` have what is lost without each; tests/test_private_names.py looks
whether they are still there. `labkit._tune` has those of Ray Tune, and the test those of Ray Train.
Nothing here imports Ray before it is needed: each process of the lab imports this module.
"""

import re
import sys
from typing import Any

HEAD_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # of gRPC, without effect: does a head answer?
CLIENT_CALL = "/ray.rpc.RayletDriver/ClusterInfo"  # the same, of the server for Ray clients

# In Ray's messages on a process that is gone.
LOW_MEMORY = "running low on memory"  # Ray ended it before the system would
DIED = (
    "died unexpectedly",
    "worker process has died",
    "The actor is dead",
    "The actor died",
    "The actor is temporarily unavailable",  # also of one that was killed, where the news of that is late
)
NODE_LOST = ("node has died", "node was terminated", "NodeDiedError")
CONNECTION = "connection error code"  # Ray saw it close, and lists what may have happened
PID = re.compile(r"(?m)^\s*pid: (\d+)$")
UNAVAILABLE = re.compile(r"The actor (\w+) is unavailable")
DETAIL = re.compile(r"[Ee]xit detail: (.+)")
STATUS = re.compile(r"exits with an exit code (.+)")
ENDED_BY_RAY = re.compile(r"(?:is dead|died) because (it .+)")
# How messages begin that the raylet and Ray's core print about processes that are gone.
PRINTED = re.compile(r"^(A worker died or was killed|Task (run_validation_fn|_map_task) failed)")

_DATA = "ray.data._internal.execution"
NAMES = {
    "ray._raylet:AuthenticationTokenLoader.instance": "the lab's token where ray is imported already",
    "ray._raylet:Config.initialize": "the lab's settings where ray is imported already",
    "ray._private.ray_logging:stdout_deduplicator.skip_re": "a worker's death in one line",
    "ray.train.v2._internal.execution.checkpoint.validation_manager:run_validation_fn": (
        "the same, of a validation"
    ),
    "ray.data._internal.execution.operators.map_operator:_map_task": "the same, of Ray Data's tasks",
    f"{_DATA}.execution_callback:ExecutionCallback.on_execution_step": "the panel of Ray Data",
    "ray.data.context:EXECUTION_CALLBACKS_ENV_VAR": "the panel of Ray Data",
    f"{_DATA}.operators.input_data_buffer:InputDataBuffer": "a row without work in the panel's table",
    f"{_DATA}.interfaces.physical_operator:PhysicalOperator.get_stats": "task seconds in the table",
}
_GCS = "core/src/ray/gcs/gcs_server"
_RAYLET = "core/src/ray/raylet/raylet"
_ON_AN_END = [
    (_GCS, "worker process has died"),
    (_GCS, "is dead because"),
    (_GCS, "node has died"),
    (_GCS, "Worker exit detail: "),
    ("_raylet.so", "The actor is temporarily unavailable"),
    (_RAYLET, LOW_MEMORY),
    (_RAYLET, CONNECTION),
    ("_raylet.so", "exits with an exit code "),
    ("exceptions.py", "died unexpectedly"),
    ("exceptions.py", "executing this task"),
    ("exceptions.py", "\\tpid: {cause.pid}"),
    ("exceptions.py", "The actor {actor_id} is unavailable"),
]
TEXTS = {  # (file of Ray, text): what is lost without it
    ("core/generated/gcs_service_pb2_grpc.py", HEAD_CALL): "a check before ray.init()",
    ("core/generated/ray_client_pb2_grpc.py", CLIENT_CALL): "a check before ray.init()",
    ("data/_internal/logging.py", "RAY_DATA_LOG_LEVEL"): "a quiet notebook",
    (_RAYLET, "A worker died or was killed"): "a death in one line",
    ("data/_internal/execution/streaming_executor.py", "self._topology"): "the operators of an execution",
    ("data/block.py", "exec_stats"): "task seconds in the panel's table",
    **dict.fromkeys(_ON_AN_END, "how a process ended"),
}


def reread_environment() -> None:
    """Let Ray read its variables again: an `import ray` in an earlier cell must not lock the reader out."""
    if "ray" in sys.modules:
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


def log_printer() -> Any:
    """Return what prints lines of workers and nodes in this process, but for those that match `skip_re`."""
    from ray._private import ray_logging

    return ray_logging.stdout_deduplicator


def operators_of(executor: Any) -> list[Any]:
    """Return the operators of an execution of Ray Data that do some work."""
    return [op for op in executor._topology if type(op).__name__ != "InputDataBuffer"]


def stats_of_blocks(operator: Any) -> list[Any]:
    """Return the times of an operator's tasks, one entry for each block that they made."""
    blocks = [block for blocks in operator.get_stats().values() for block in blocks]
    return [block.exec_stats for block in blocks if block.exec_stats is not None]
