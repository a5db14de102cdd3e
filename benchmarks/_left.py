"""What may be left of a run: ports, temporary folders, CPUs and placement groups of Ray, processes."""

from pathlib import Path

import psutil

_RAYS_OWN = ("IDLE", "_StatsActor", "_AutoscalingCoordinatorActor", "DashboardAgent", "RuntimeEnvAgent")
_KEPT = ("torchinductor_root", "_ray_lockfiles")  # folders that torch and Ray use again


def ports() -> set[str]:
    """Return the ports on which this process listens."""
    connections = psutil.Process().net_connections()
    return {f"port {each.laddr.port}" for each in connections if each.status == psutil.CONN_LISTEN}


def folders(place: Path) -> set[str]:
    """Return the folders for temporary files in `place`, without those that are used again."""
    return {f"folder {path.name}" for path in place.iterdir() if not path.name.startswith(_KEPT)}


def of_cluster(cpus: float) -> list[str]:
    """List what is taken of the cluster of this process, which has so many CPUs."""
    import ray

    groups = ray.util.placement_group_table().items()
    left = [f"placement group {number}" for number, group in groups if group["state"] != "REMOVED"]
    free = ray.available_resources().get("CPU", 0)
    if free != cpus:
        left.append(f"{free:g} of {cpus:g} CPUs are free")
    return left


def is_idle(title: str) -> bool:
    """Return whether a process with this title is a worker of Ray that waits, or one of Ray's own actors."""
    return title.startswith("ray::") and title[5:].startswith(_RAYS_OWN)
