"""One fork for a worker instead of two.

Ray starts a worker in two steps: `setup_worker.py` sets the variables of the worker's runtime environment,
and then executes its `py_executable`. Where that is the fork server's client, the second step would start one
more Python, only to ask for one more fork. So the fork for the first step becomes the worker itself.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from labkit.local.forkserver.worker import Request

_PROGRAM = "setup_worker.py"


def is_setup(request: Request) -> bool:
    """Return whether the request is for Ray's program that prepares a worker."""
    return Path(request.argv[0]).name == _PROGRAM


def worker_after(request: Request, client: str) -> Request | None:
    """Return the request for the worker that `setup_worker.py` would execute; None if it has to run itself.

    It changes this process's environment, so it runs in the fork.

    Args:
        client: the command of the fork server's client, as runtime environments have it.
    """
    try:
        from ray._private.runtime_env.context import RuntimeEnvContext
        from ray._private.utils import update_envs

        parser = argparse.ArgumentParser(
            allow_abbrev=False,
            exit_on_error=False,
        )
        parser.add_argument("--serialized-runtime-env-context")
        parser.add_argument("--language")
        options, argv = parser.parse_known_args(request.argv[1:])
        context = RuntimeEnvContext.deserialize(options.serialized_runtime_env_context or "{}")
        # Whatever else a runtime environment can have, such as a container, is left to Ray.
        plain = RuntimeEnvContext(env_vars=context.env_vars, py_executable=client)
        if options.language != "PYTHON" or vars(context) != vars(plain):
            return None
        os.environ.clear()
        os.environ.update(request.environment)
        update_envs(context.env_vars)
    except (ImportError, argparse.ArgumentError, AttributeError, TypeError, ValueError):
        return None  # another Ray: it takes two forks
    return replace(request, argv=argv, environment=dict(os.environ))
