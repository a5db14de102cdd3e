"""The `ray start` commands of a head and of further nodes, on this machine and on others."""

import shlex
from collections.abc import Iterable

from labkit.errors import ClusterError
from labkit.machine import free_port


def head_command(*, name: str, port: int, dashboard_port: int, options: Iterable[str] = ()) -> list[str]:
    """The command that starts a head."""
    command = ["ray", "start", "--head", f"--node-name={name}", f"--port={port}"]
    return [*command, "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}", *options]


def node_command(address: str, *, name: str, options: Iterable[str] = ()) -> list[str]:
    """The command that starts one more node of the cluster at `address`."""
    return ["ray", "start", f"--address={address}", f"--node-name={name}", *options]


def local_options(cpus: int, object_store_bytes: int) -> list[str]:
    """Options for several nodes, and several clusters, on one machine."""
    return [
        f"--num-cpus={cpus}",
        f"--object-store-memory={object_store_bytes}",
        "--min-worker-port=0",  # `ray start` refuses one of these two without the other
        "--max-worker-port=0",
        f"--dashboard-agent-listen-port={free_port()}",
    ]


def shell_commands(ip: str) -> str:
    """The shell commands that start a cluster on several machines, to copy and paste.

    Args:
        ip: the head's IP address.
    """
    head = head_command(name="head", port=6379, dashboard_port=8265)
    node = node_command(f"{ip}:6379", name="node-2")
    return "\n".join(
        [
            "# on every machine: the same token, readable by you alone",
            "ray get-auth-token --generate && chmod 600 ~/.ray/auth_token",
            "# (then copy the file to the other machines)",
            "export RAY_AUTH_MODE=token",
            "# on the first machine",
            shlex.join(head),
            "# on each other machine",
            shlex.join(node),
            "# in the notebook, on any of them",
            f'lab = cluster.connect("{ip}:6379")',
            "# when you are done, on every machine",
            "ray stop",
        ]
    )


def head_ip(output: str) -> str:
    """The IP address that the head chose, from what `ray start` prints."""
    plain = "".join(part.partition("m")[2] if k else part for k, part in enumerate(output.split("\x1b[")))
    for line in plain.splitlines():
        if "Local node IP" in line:
            return line.rpartition(":")[2].strip()
    raise ClusterError(
        "start the head", "`ray start` did not print its address", "report this with the version of Ray"
    )
