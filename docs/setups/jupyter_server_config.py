"""Ray's dashboard behind JupyterLab's own login: the proxy adds the cluster's token, so no learner types it.

For jupyter-server-proxy. The dashboard listens on loopback in the learner's container, on a port that changes
with each cluster, so a small forwarder looks up the port for every connection.
"""

import sys
from pathlib import Path

import labkit
from labkit.settings import Settings


def token() -> dict[str, str]:
    """The header that Ray reads where a proxy needs `Authorization` itself."""
    path = Settings.from_env().home / "ray-token"
    return {"X-Ray-Authorization": f"Bearer {path.read_text().strip()}"} if path.exists() else {}


forwarder = Path(labkit.__file__).parents[1] / "docs" / "setups" / "dashboard.py"
c.ServerProxy.servers = {  # noqa: F821
    "ray-dashboard": {
        "command": [sys.executable, str(forwarder), "{port}"],
        "request_headers_override": token,
        "timeout": 30,
        "launcher_entry": {"title": "Ray dashboard"},
    }
}
