"""A learner's function, launched by a check with Spark's TorchDistributor."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.exercises.answers import NotAttempted, Wrong, expect_function


def launched(function: Callable, *args: Any, name: str, processes: int = 2) -> Any:
    """Run `function` in processes of this machine, without GPUs, and return what one of them returned.

    Raises:
        NotAttempted: a ``...`` is still in it.
        Wrong: it cannot be pickled, or a rank raises.
    """
    from pyspark.ml.torch.distributor import TorchDistributor

    from labkit.errors import LabError
    from labkit.settings import Settings
    from labkit.spark import SparkPanel

    expect_function(function, name)
    quiet = replace(Settings.from_env(), panel="none")
    distributor = TorchDistributor(num_processes=processes, local_mode=True, use_gpu=False)
    try:
        with SparkPanel(f"check of {name}", settings=quiet).watch(distributor):
            return distributor.run(function, *args)
    except LabError as error:
        if "ellipsis" in error.fact.lower():
            raise NotAttempted from None
        if "closed by peer" in error.fact or "SIGABRT" in error.fact:
            fact = (
                "one rank ended while another waited for it: all ranks have to make the same calls and steps"
            )
            raise Wrong(f"{name}: {fact}") from None
        raise Wrong(f"{name}: {error.fact}. Fix: {error.fix}") from None
    except Exception as error:
        if "ellipsis" in str(error).lower():
            raise NotAttempted from None
        raise Wrong(f"{name} raised {type(error).__name__}: {error}") from None
