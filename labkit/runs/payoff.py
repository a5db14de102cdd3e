"""Will more workers pay? What a step costs, fitted to a few measured ones, and what other runs would cost.

    >>> measured = [(1, 256, 0, alone), (1, 64, 0, few_rows), (2, 32, 1, small), (2, 32, 64, large)]
    >>> runs.will_it_pay(measured, rows=256, megabytes=16, steps=5000).table.loc[8, "hours"]

A step of n workers, which share `rows` rows and average `megabytes` MB in a ring all-reduce, takes

    serial + per_row · rows / n  +  alpha · 2 (n - 1)  +  beta · megabytes · 2 (n - 1) / n

seconds: Amdahl's law, and the alpha-beta model of a network (Thakur, Rabenseifner and Gropp, 2005). The model
assumes a core or a GPU for each worker, links that are equally fast, and communication that overlaps nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.errors import RunError

if TYPE_CHECKING:
    import numpy
    import pandas

_RESAMPLED = 400  # fits of resampled steps, for the range
_RANGE = (5, 95)  # percentiles


@dataclass(frozen=True)
class Payoff:
    """What `will_it_pay` found. Displays itself as its table.

    Attributes:
        serial: seconds of a step that more workers don't shorten.
        per_row: seconds for one row.
        alpha: seconds for one message, whatever its size.
        beta: seconds for one megabyte.
        serial_share: the part of one worker's step that is serial, 0 to 1 (Amdahl's).
        table: for each number of workers "step ms" with its range "low ms" to "high ms", "speed-up", "hours"
            and "core-hours" of the whole run, and "pays after": its break-even, the steps after which it has
            caught up with one worker, which started `start` seconds earlier; infinite if it never does.
    """

    serial: float
    per_row: float
    alpha: float
    beta: float
    serial_share: float
    table: "pandas.DataFrame"

    def __repr__(self) -> str:
        network = f"alpha {1e6 * self.alpha:.0f} µs, beta {1e3 * self.beta:.2f} ms/MB"
        return f"serial {self.serial_share:.1%}, {network}\n{self.table.round(3)}"

    def _repr_html_(self) -> str:
        return self.table.round(3).to_html()


def will_it_pay(
    measured: Sequence[tuple[int, float, float, Sequence[float]]],
    *,
    rows: int,
    megabytes: float,
    steps: int,
    start: float = 0.0,
    workers: Sequence[int] = (1, 2, 4, 8, 32),
) -> Payoff:
    """Fit what a step costs, and predict the time and the core-hours of a run with other numbers of workers.

    The range comes from resampling the measured seconds: it shows how much they vary, not if the model fits.

    Args:
        measured: (workers, rows of each worker, megabytes, seconds of each step), at least four: two numbers
            of rows, and two of megabytes with two or more workers.
        rows: the global batch of the run to predict. All workers share it.
        megabytes: size of its gradients.
        steps: how many it has.
        start: seconds that several workers take longer to start than one.
        workers: which numbers to predict.

    Raises:
        RunError: these measurements don't determine the four costs, or one has a value that cannot be.
    """
    import numpy
    import pandas

    attempt = "predict the cost of more workers"
    given = {"rows": rows, "megabytes": megabytes, "steps": steps, "start": start, "workers": list(workers)}
    if min(workers, default=0) < 1 or min(rows, steps) <= 0 or min(megabytes, start) < 0:
        fact = ", ".join(f"{name} is {value}" for name, value in given.items())
        raise RunError(attempt, fact, "pass numbers above 0 (megabytes and start may be 0)")
    for n, batch, size, seconds in measured:
        if n < 1 or min(batch, size) < 0 or not all(0 < s < math.inf for s in seconds) or not len(seconds):
            fact = f"one measurement has {n} workers, {batch} rows, {size} MB and seconds {list(seconds)[:3]}"
            raise RunError(attempt, fact, "pass (workers, rows, megabytes, [seconds of each step, above 0])")
    terms = numpy.array([_terms(*one[:3]) for one in measured]).reshape(-1, 4)
    if numpy.linalg.matrix_rank(terms / numpy.maximum(terms.max(axis=0, initial=0), 1e-12)) < 4:
        fact = f"{len(terms)} measurements of this kind don't tell serial, per_row, alpha and beta apart"
        fix = "measure two numbers of rows, and two of megabytes with two or more workers"
        raise RunError(attempt, fact, fix)

    random, samples = numpy.random.default_rng(0), [numpy.asarray(seconds) for *_, seconds in measured]
    costs = _fit(terms, samples)
    others = [_fit(terms, [random.choice(one, len(one)) for one in samples]) for _ in range(_RESAMPLED)]
    asked, many = numpy.array([_terms(n, rows / n, megabytes) for n in workers]), numpy.array(workers)
    step, alone = asked @ costs, costs @ _terms(1, rows, 0)
    low, high = numpy.percentile(asked @ numpy.transpose(others), _RANGE, axis=1)
    later = start * (many > 1)
    hours = (later + steps * step) / 3600
    columns = {"step ms": 1e3 * step, "low ms": 1e3 * low, "high ms": 1e3 * high, "speed-up": alone / step}
    columns |= {"hours": hours, "core-hours": many * hours}
    columns["pays after"] = [
        s / (alone - t) if t < alone else math.inf for s, t in zip(later, step, strict=True)
    ]
    table = pandas.DataFrame(columns, index=pandas.Index(workers, name="workers"))
    return Payoff(*map(float, costs), serial_share=float(costs[0] / alone), table=table)


def _terms(n: int, rows: float, megabytes: float) -> list[float]:
    """What serial, per_row, alpha and beta are multiplied by in a step of `n` workers, `rows` rows each."""
    return [1.0, rows, 2 * (n - 1), megabytes * 2 * (n - 1) / n]


def _fit(terms: "numpy.ndarray", samples: "list[numpy.ndarray]") -> "numpy.ndarray":
    """Least squares of the relative errors of the medians, with no cost below 0."""
    import numpy

    weights, free = numpy.array([1 / numpy.median(one) for one in samples]), numpy.ones(4, dtype=bool)
    while True:
        costs = numpy.zeros(4)
        costs[free] = numpy.linalg.lstsq((terms * weights[:, None])[:, free], numpy.ones(len(terms)))[0]
        if (costs >= 0).all():
            return costs
        free &= costs > 0
