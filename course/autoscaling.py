"""A cluster on this machine whose nodes come and go by themselves.

    lab = autoscaling.start(node_types, idle_timeout_minutes=0.1)
    ...
    lab.stop()
    autoscaling.stop()

The autoscaler is Ray's own, which `ray up` and KubeRay use as well. Its provider, the part that rents
machines, is ``fake_multinode``, with which Ray tests it: a machine is a few processes there. It isn't
documented, so an update of Ray may change it.
"""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.cluster import Cluster, connect, left_or_running
from labkit.errors import BadInput, LabError, NotReachable
from labkit.files import private_file
from labkit.interrupts import wait_until
from labkit.local.lab import Lab
from labkit.machine import free_port
from labkit.settings import Settings

__all__ = ["start", "stop"]

_GROUP = "autoscaled"
# The provider's names for the head, and for its type.
HEAD_ID = "f" * 51 + "00000"  # as the fake provider wants it
_HEAD_TYPE = "ray.head.default"
_START_SECONDS = 240  # a head is up in 8 s on a quiet machine
_PORTS = ("dashboard", "ray-client-server", "dashboard-agent-listen")
_NO_COMMANDS = (
    "initialization",
    "setup",
    "head_setup",
    "worker_setup",
    "head_start_ray",
    "worker_start_ray",
)


def start(node_types: Mapping[str, Mapping[str, Any]], *, idle_timeout_minutes: float) -> Cluster:
    """Start a head and connect to it. Other nodes start when something asks for what only they have.

    A cluster that an earlier call has started is stopped first; another one has to be left before.

    Args:
        node_types: the ``available_node_types`` of a file for `ray up`: of each type its ``resources`` and
            ``max_workers``. The provider calls the head's type ``ray.head.default``.
        idle_timeout_minutes: how long a node has to be idle until it is stopped.

    Raises:
        BadInput: the head has no node type.
        NotReachable: it did not start.
    """
    import ray

    attempt = "start a cluster that scales by itself"
    if _HEAD_TYPE not in node_types:
        raise BadInput(
            attempt,
            f"no node type is called {_HEAD_TYPE!r}, and the provider calls its head so",
            f"add {{{_HEAD_TYPE!r}: {{'resources': {{'CPU': 1}}, 'max_workers': 0}}}}",
        )
    earlier = left_or_running()
    if earlier is not None:
        if earlier.address != Lab(Settings.from_env().home).noted(_GROUP, {"address": str}).get("address"):
            raise LabError(attempt, f"this notebook is connected to {earlier.address}", "lab.stop() first")
        earlier.stop()
    stop()
    lab = Lab(Settings.from_env().make_home())
    folder = lab.home / _GROUP
    folder.mkdir(exist_ok=True)
    token = folder / "scaling-token"
    private_file(token, secrets.token_hex(32))
    port = free_port()
    address = f"{ray.util.get_node_ip_address()}:{port}"
    scaling = folder / "scaling.json"
    scaling.write_text(json.dumps(configuration(address, node_types, idle_timeout_minutes)))
    log = folder / "head.log"
    log.unlink(missing_ok=True)
    cpus = int(node_types[_HEAD_TYPE]["resources"]["CPU"])
    command = _command(port, cpus, scaling, lab.make_folder())
    lab.use(_GROUP)
    lab.note(_GROUP, {"address": address})
    head = lab.start(command, group=_GROUP, log=log, env=_environment(token))

    def has_spoken() -> bool:
        return "Ray runtime started" in log.read_text() or head.status() is not None

    wait_until(has_spoken, seconds=_START_SECONDS)
    printed = log.read_text()
    if "Ray runtime started" not in printed:
        stop()
        fact = printed[-500:] or f"it said nothing for {_START_SECONDS} s"
        raise NotReachable(attempt, fact, "run the cell again")
    return connect(address, token_file=token)


def stop() -> None:
    """Stop all nodes of the cluster that `start` has started."""
    Lab(Settings.from_env().home).stop(_GROUP)


def configuration(address: str, node_types: Mapping[str, Mapping[str, Any]], idle: float) -> dict[str, Any]:
    """Return what Ray's autoscaler reads: the fake provider, the node types, and minutes until a node goes.

    `address` is the head's, as host:port.
    """
    provider = {
        "type": "fake_multinode",
        "gcs_address": address,
        "head_node_id": HEAD_ID,
        "use_node_id_as_ip": True,  # all nodes have the address of this machine
        "disable_node_updaters": True,  # there is nothing to install on them
        "disable_launch_config_check": True,
    }
    return {
        "cluster_name": "fake",
        "provider": provider,
        "available_node_types": {
            name: {"node_config": {}, **node_type} for name, node_type in node_types.items()
        },
        "head_node_type": _HEAD_TYPE,
        "max_workers": sum(node_type["max_workers"] for node_type in node_types.values()),
        "idle_timeout_minutes": idle,
        "upscaling_speed": 1.0,
        "file_mounts_sync_continuously": False,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        **{f"{name}_commands": [] for name in _NO_COMMANDS},
    }


def _command(port: int, cpus: int, configuration: Path, folder: Path) -> list[str]:
    ray = Path(sys.executable).with_name("ray")
    return [
        str(ray),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        f"--num-cpus={cpus}",
        f"--autoscaling-config={configuration}",
        *(f"--{name}-port={free_port()}" for name in _PORTS),
        f"--temp-dir={folder}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--object-store-memory=100000000",
    ]


def _environment(token: Path) -> dict[str, str]:
    return {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
