"""The private names of Ray that the cluster and its fork server use: which of them this Ray still has.

Where one is gone the lab does with less (see the other tests); this says what to look at.
"""

import mmap
import pkgutil
from pathlib import Path

import pytest
import ray

from labkit.cluster import connection, nodes

NAMES = {
    "ray._raylet:AuthenticationTokenLoader.instance": "the lab's token where ray is imported already",
    "ray._raylet:Config.initialize": "the lab's settings where ray is imported already",
    "ray.scripts.scripts:main": "`ray start` with another Python for its workers",
    "ray.actor:ActorClassID.from_random": "forks: modules with actor classes draw ids at their import",
    "ray:ObjectRef.from_random": "forks: the check that no two draw the same ids",
}
TEXTS = {
    "core/generated/gcs_service_pb2_grpc.py": connection._HEAD,
    "core/generated/ray_client_pb2_grpc.py": connection._CLIENTS,
    "scripts/scripts.py": '"Local node IP"',
    "_private/workers/setup_worker.py": "exec_worker",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_is_still_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(f"Ray {ray.__version__} has no {name}: {NAMES[name]}")


@pytest.mark.parametrize("path", TEXTS)
def test_a_text_is_still_there(path):
    file = Path(ray.__file__).parent / path
    assert file.is_file() and TEXTS[path] in file.read_text(), f"Ray {ray.__version__}: {path}"


@pytest.mark.parametrize("name", nodes._FORKED)
def test_a_setting_of_rays_core_is_still_there(name):
    library = Path(ray.__file__).parent / "_raylet.so"
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        assert content.find(name.removeprefix("RAY_").encode()) >= 0, f"Ray {ray.__version__} has no {name}"
