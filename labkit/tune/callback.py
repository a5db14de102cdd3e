"""From Tune's loop to the panel that is open in the same process."""

import logging
from typing import Any

from ray import tune

from labkit.errors import LabError

open_panels: list[Any] = []  # the panel that is open in this process, if one is


class SweepCallback(tune.Callback):
    """Tells the panel that is open in this process what Tune's loop does.

    It holds no panel: Tune pickles it into the folder of the sweep, and a fresh process that restores the
    sweep has a panel of its own.
    """

    _saves = False  # whether Tune has written the sweep's state in this step of its loop

    def __init__(self, panel_name: str) -> None:
        self.panel_name = panel_name

    def setup(
        self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **_: Any
    ) -> None:
        self._tell("_set_up", total_num_samples)

    def on_step_begin(self, iteration: int, trials: list, **_: Any) -> None:
        self._tell("_look", trials)

    def on_step_end(self, iteration: int, trials: list, **_: Any) -> None:
        if self._saves and trials:
            self._saves = False
            self._tell("_wrote", trials)

    def get_state(self) -> None:
        """Tune asks for a callback's state whenever it writes that of the sweep. This one has none."""
        self._saves = True

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        self._tell("_started", trial)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **_: Any) -> None:
        self._tell("_reported", trial, result)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        self._tell("_completed", trial)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        self._tell("_failed", trial)

    def on_experiment_end(self, trials: list, **_: Any) -> None:
        self._tell("_ended", trials)

    def _tell(self, what: str, *args: Any) -> None:
        if not open_panels:
            return
        try:
            getattr(open_panels[-1], what)(*args)
        except LabError:
            raise
        except Exception:  # what a panel cannot show must not cost the reader the sweep
            logging.getLogger(__name__).debug("the panel could not take in %s", what, exc_info=True)


class Silent(tune.ProgressReporter):
    """In the place of Tune's own reporter, which displays an empty output even where it is to say nothing."""

    def setup(self, **_: Any) -> None:
        pass

    def should_report(self, trials: list, done: bool = False) -> bool:
        return False

    def report(self, trials: list, done: bool, *sys_info: dict) -> None:
        pass
