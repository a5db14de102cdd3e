"""The live curve of a run: metrics at points in time, as many as a figure has room for."""

from typing import Any

_POINTS_KEPT = 240  # about one per pixel of the figure


class Curve:
    """Metrics by epoch and step."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int, dict[str, Any]]] = []  # (epoch, step, metrics)
        self._lengths: dict[int, int] = {}  # epoch -> its steps, or the most seen so far
        self._restarts = 0
        # Down-sampling: keep every `_stride`-th point and the newest one.
        self._added, self._stride = 0, 1
        self._newest_is_extra = False

    def add(
        self, epoch: int, step: int, *, length: int | None, metrics: dict[str, Any], restarts: int = 0
    ) -> None:
        """Add what is known after `step` steps of `epoch`.

        Args:
            length: steps of that epoch, if known.
            restarts: how often the training was started again: what came after its checkpoint is void.
        """
        if restarts != self._restarts:
            self._restarts = restarts
            self._points = [point for point in self._points if point[:2] < (epoch, step)]
            self._newest_is_extra = False
        self._lengths[epoch] = length or max(self._lengths.get(epoch, 0), step)
        if not metrics:
            return
        if self._newest_is_extra:
            self._points.pop()
        self._points.append((epoch, step, metrics))
        self._newest_is_extra = self._added % self._stride != 0
        self._added += 1
        if len(self._points) > _POINTS_KEPT:
            del self._points[1::2]
            self._stride *= 2

    @property
    def points(self) -> list[tuple[float, dict[str, Any]]]:
        """(epochs done, metrics), thinned to a few hundred."""
        # While the length of the first epoch is unknown, it ends at the latest step.
        return [(e + min(step / max(self._lengths[e], 1), 1.0), m) for e, step, m in self._points]

    @property
    def latest(self) -> dict[str, Any]:
        """The newest metrics."""
        return self._points[-1][2] if self._points else {}
