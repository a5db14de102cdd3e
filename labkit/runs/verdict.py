"""Why a run is slow, on which rank, and what its epochs would take without that.

    >>> verdict({}).sentence
    'not enough to say: no parts of steps were measured'

`verdict` is a pure function of the numbers in a run's record. For each rank these are sums over all steps,
noted a few times during the run. The steps are cut into five stretches: a cause must be there in four of
them, and how much they differ makes the band around the prediction.

The model is lesson 09's. Ranks meet in the exchange of each step, so a step takes as long as the slowest rank
needs for itself, plus the exchange of the rank that waits least. Without a cause, the same is computed with
that part taken away.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from operator import itemgetter, sub
from statistics import median, stdev
from typing import Any

from labkit.display.formatting import seconds, size
from labkit.runs.record import RunRecord

PARTS = ("data", "forward", "backward", "exchange", "optimizer", "rest")
COLUMNS = (
    *("steps", "epochs", "rows", "wall", "data", "computed", "forward", "backward", "exchange", "optimizer"),
    *("queue", "reports", "evaluating", "memory"),
)
Samples = Mapping[int, list[dict[str, float]]]  # of each rank: sums over its steps, by column

_STRETCHES, _AGREE = 5, 4
_LEAST_STEPS, _LEAST_SECONDS = 20, 1.0  # of all ranks, after the first step
# The share of its time that a run must win without a cause. Of another program on the machine it is higher,
# because a busy machine takes a bit from every run.
_SHARE = {"data": 0.15, "slow rank": 0.15, "exchange": 0.35, "reports": 0.1, "validation": 0.1}
_BUSY_SHARE, _BUSY_WIN = 0.2, 0.1  # of a busy rank's wait for its core, and of what the run wins without it
_FEW_ROWS, _FEW_ROWS_SHARE = 16, 0.2  # with fewer rows in a step, a smaller exchange is enough
_QUEUED_EXCHANGE = 0.5  # of the wait for a core: threads that exchange wait for one, too
_LATE = 0.2  # of a wait for a core: the others wait for that rank in the exchange
_BUSY_MACHINE = 0.1  # of the time: from there on the sentence says that ranks waited for a core
_ALL_WAIT = 0.25  # of the time: where every rank waits that long for its data, it is no rank's fault
_MORE_ROWS, _ROWS_WIN = 1.15, 0.01  # times the rows of the other ranks; and what the run wins at least
_LEAK, _LEAK_SHARE = 32e6, 0.05  # bytes between two thirds of a run, and of all its memory

_WAITING = "waiting for a store or another process"
_ROWS_HERE = "computing rows in the training process"
# Why a rank takes longer than the others: {reason: (cause, its detail, words)}.
_REASONS = {
    "waiting": ("data", "waiting", f", {_WAITING}"),
    "data": ("data", "computing", f", {_ROWS_HERE}"),
    "busy": ("slow rank", "busy", ": other programs take its core"),
    "computing": ("slow rank", "computing", ", computing"),
    "rows": ("slow rank", "rows", ": it has {:.0f} rows in a step, the others {:.0f}"),
}
# What to read: a lesson or the path of a page, and its section.
PAGES = {
    "data": ("lesson 03c", "More than fits, while you train"),
    "slow rank": ("lesson 09", "A straggler"),
    "exchange": ("lesson 03", "When two workers win"),
    "reports": ("lesson 03b", "A place for checkpoints"),
    "validation": ("lesson 06", "Validate while the training goes on"),
    "start": ("docs/fast-start.md", "Why a run starts fast"),
    "memory": ("docs/verdict.md", "Memory that grows"),
}


@dataclass(frozen=True)
class Cause:
    """One thing that costs time, or memory.

    Attributes:
        name: a key of `PAGES`.
        seconds: that it costs in the run.
        text: what is wrong, in a sentence without its end.
        rank: the rank whose fault it is; None if it is no rank's fault.
        detail: of a slow rank "computing", "busy" or "rows"; of data "computing" or "waiting".
        without: the seconds of an epoch without it, and the least and the most that these may be.
    """

    name: str
    seconds: float
    text: str
    rank: int | None = None
    detail: str = ""
    without: tuple[float, float, float] | None = None

    @property
    def page(self) -> str:
        """Where to read on: ``lesson 09, "A straggler"``."""
        place, section = PAGES[self.name]
        return f'{place}, "{section}"'


@dataclass(frozen=True)
class Verdict:
    """Why a run is slow: its causes, the most expensive first.

    Attributes:
        name: of the first cause, or "healthy", or "unknown" where there is not enough to say.
        shares: of each rank, how its time divides among `PARTS`.
    """

    name: str
    sentence: str
    causes: tuple[Cause, ...] = ()
    epoch: float | None = None
    shares: Mapping[int, tuple[float, ...]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        shares = self.shares or {}
        return {
            "verdict": self.name,
            "sentence": self.sentence,
            "seconds_per_epoch": self.epoch,
            "causes": [{**asdict(cause), "page": cause.page} for cause in self.causes],
            "shares": {str(rank): dict(zip(PARTS, shares[rank], strict=True)) for rank in shares},
        }


class Stretch:
    """The mean step of each rank between two steps of a run."""

    def __init__(self, samples: Samples, first: float, last: float, crowds: Mapping[int, float]) -> None:
        self.ranks = {
            rank: _mean_step(rows, first, last, crowds.get(rank, 1.0)) for rank, rows in samples.items()
        }

    def of(self, name: str) -> dict[int, float]:
        """Return a part of each rank."""
        return {rank: step[name] for rank, step in self.ranks.items()}

    def longest(self, name: str, but: int | None = None) -> float:
        """Return the largest value of a part, of all ranks but one."""
        return max(step[name] for rank, step in self.ranks.items() if rank != but)

    @property
    def exchange(self) -> float:
        """What remains of the exchange if no rank has to wait for another."""
        return min(self.of("exchange").values())

    @property
    def seconds(self) -> float:
        """What a step takes without reports and validations, by the model."""
        return self.longest("own") + self.exchange

    @property
    def validation(self) -> float:
        return self.longest("evaluating")

    @property
    def reports(self) -> float:
        """What reports cost. While one rank evaluates, another may wait for it in a report: that isn't it."""
        return self.longest("outside") - self.validation

    @property
    def slowest(self) -> int:
        """The rank that the others wait for."""
        own = self.of("own")
        return max(own, key=own.__getitem__)

    # -- what a step would win -----------------------------------------------------------------------

    def without_data(self) -> float:
        """Return what a step wins if no rank waits for data, or computes it."""
        own = self.longest("own") - self.longest("own but data")
        return own + min(_LATE * min(self.of("data queue").values()), self.exchange)

    def without_exchange(self) -> float:
        """Return what a step wins if ranks exchange nothing: no thread that does so takes a core, either."""
        return self.seconds - self.longest("undisturbed")

    def without_rank(self) -> float:
        """Return what a step wins if the slowest rank is as fast as the next one."""
        return self.longest("own") - self.longest("own", but=self.slowest)

    def without_programs(self) -> float:
        """Return what a step wins if no other program takes a core from any rank."""
        return self.longest("own") - self.longest("undisturbed")

    def with_equal_rows(self) -> float:
        """Return what a step wins if the ranks share the rows, which have to be computed anyway.

        All compute at the same time then, so each waits for a core as the other ranks do now.
        """
        ranks = len(self.ranks)
        waiting = sum(self.of("waiting").values()) / ranks
        computing = sum(self.of("computing").values()) / ranks
        queued = self.longest("queued", but=self.slowest)
        return self.longest("own") - waiting - computing * (1 + queued)

    def excess(self, rank: int) -> dict[str, float]:
        """Return how much longer a rank needs for a step than all others, by reason.

        The reasons: waiting for data, computing its data, being busy (other programs have the core), and
        computing. On a busy machine, a rank with more to compute also waits longer for a core, in proportion.
        """
        step = self.ranks[rank]
        busy = max(step["queue"] - self.longest("queued", but=rank) * step["computing"], 0.0)
        unhindered = 1 - busy / max(step["busy"], 1e-9)
        excess = {
            "waiting": step["waiting"] - self.longest("waiting", but=rank),
            "busy": busy,
            "data": step["computed"] * unhindered - self.longest("computed", but=rank),
        }
        total = step["own"] - self.longest("own", but=rank)
        return {**excess, "computing": total - sum(excess.values())}


def verdict(parts: Mapping[str, Any], *, start: float | None = None, total: float | None = None) -> Verdict:
    """Return why a run is slow.

    Args:
        parts: as in the record: the samples of each rank, why there are none, and how many ranks each one
            shares a core with ("crowds", at least 1).
        start: seconds until the first step.
        total: seconds of the run.
    """
    if parts.get("unseen"):
        return _unknown(f"the parts of a step aren't measured {parts['unseen']}")
    try:
        samples = {int(rank): _samples(rows) for rank, rows in parts.get("ranks", {}).items()}
        crowds = {int(rank): float(crowd) for rank, crowd in parts.get("crowds", {}).items()}
    except (TypeError, ValueError, AttributeError):
        return _unknown("the record is damaged")
    if not samples or not all(samples.values()):
        return _unknown("no parts of steps were measured")
    first = max(rows[0]["steps"] for rows in samples.values())
    steps = min(rows[-1]["steps"] for rows in samples.values()) - first
    if steps <= 0:
        return _unknown("too few steps")
    search = _Search(samples, first, steps, crowds)
    shares = {rank: _shares(step) for rank, step in search.whole.ranks.items()}
    wall = steps * search.wall
    if steps < _LEAST_STEPS or wall < _LEAST_SECONDS:
        return _unknown(f"{steps:.0f} steps in {seconds(wall)}", shares=shares)
    causes = [cause for find in _FINDERS for cause in find(search)]
    if start is not None and total is not None and start > total - start:
        text = f"the start took {seconds(start)} of the {seconds(total)} that the run lasted"
        causes.append(Cause("start", start, text))
    causes = sorted(causes, key=lambda cause: -cause.seconds) + _memory(search)
    epoch = search.wall * search.epoch if search.epoch else None
    if search.mixed and not causes:
        return _unknown("what was slow changed during the run", shares=shares, epoch=epoch)
    sentence = ". ".join(_sentence(cause, epoch) for cause in causes) or _healthy(search)
    if search.queue >= _BUSY_MACHINE:
        is_crowded = max(crowds.values(), default=1.0) > 1
        waited = "ranks waited for a core, as there are more ranks than cores"
        sentence += f"; for {search.queue:.0%} of the time, "
        sentence += waited if is_crowded else "other programs had the core"
    return Verdict(causes[0].name if causes else "healthy", sentence, tuple(causes), epoch, shares)


def verdict_of(record: RunRecord) -> Verdict:
    """Return the verdict on a past run."""
    return verdict(record.parts, start=record.seconds_to_start, total=record.seconds_total)


class _Search:
    """A run, in one piece and in stretches; the functions below look for causes in it."""

    def __init__(self, samples: Samples, first: float, steps: float, crowds: Mapping[int, float]) -> None:
        self.samples = samples
        self.steps = steps
        cuts = [first + steps * k / _STRETCHES for k in range(_STRETCHES + 1)]
        self.whole = Stretch(samples, first, first + steps, crowds)
        self.stretches = [Stretch(samples, *pair, crowds) for pair in itertools.pairwise(cuts)]
        self.wall = self.whole.longest("wall")
        self.queue = self.share_of("queue")
        self.epoch = _epoch_length(next(iter(samples.values())))  # in steps
        self.mixed = False  # whether a cause was there for a part of the run only

    def share_of(self, *names: str) -> float:
        """Return the share of some parts in the time of all ranks."""
        steps = self.whole.ranks.values()
        return sum(step[name] for step in steps for name in names) / sum(step["wall"] for step in steps)

    def cause(
        self,
        name: str,
        win: Callable[[Stretch], float],
        text: str,
        *,
        least: float = 0.0,
        sign: Callable[[Stretch], float] | None = None,
        certain: float = 0.9,
        kept: float = 1.0,
        steady: bool = True,
        **about: Any,
    ) -> list[Cause]:
        """Return the cause if a step would win enough without it.

        Args:
            win: seconds that a step of a stretch would win.
            least: the share of the time that is enough; by default that of the cause.
            sign: seconds that show the cause in a stretch; by default what it would win.
            certain: the share of the seconds that is won for sure.
            kept: the share of what is left that stays for sure.
            steady: whether it must be there in most stretches.
        """
        least = least or _SHARE[name]
        won = win(self.whole)
        if won < least * self.wall:
            return []
        took = [stretch.seconds for stretch in self.stretches]
        wins = [win(stretch) for stretch in self.stretches]
        signs = wins if sign is None else [sign(stretch) for stretch in self.stretches]
        enough = 0.75 * (least if sign is None else _SHARE[name])
        there = [shown >= enough * whole for shown, whole in zip(signs, took, strict=True)]
        if steady and sum(there) < _AGREE:
            self.mixed = True
            return []
        without = None
        if self.epoch:
            rest = self.wall - won
            spread = 2 * stdev(map(sub, took, wins)) / _STRETCHES**0.5 if steady else 0.0
            # Other programs may use more or less the next time.
            error = max(spread, 0.05 * self.wall) + self.queue * rest
            bounds = (rest, rest * kept - error, self.wall - won * certain + error)
            best, low, high = (max(step, 0.0) * self.epoch for step in bounds)
            without = best, low, high
        return [Cause(name, won * self.steps, text, without=without, **about)]


def _data_or_rank(search: _Search) -> list[Cause]:
    """Waiting for data on one rank or all, and a rank that the others wait for."""
    whole = search.whole
    causes = _slow_rank(search) if len(whole.ranks) > 1 else []
    if any(cause.name == "data" for cause in causes):
        return causes
    step = whole.ranks[whole.slowest]
    is_waiting = step["waiting"] > step["computed"]
    detail, how, certain = ("waiting", _WAITING, 0.9) if is_waiting else ("computing", _ROWS_HERE, 0.3)
    who = "every rank" if len(whole.ranks) > 1 else "the loop"
    text = f"{who} spends {seconds(step['data'])} of a step on its data, {how}"
    return causes + search.cause("data", Stretch.without_data, text, certain=certain, detail=detail)


def _slow_rank(search: _Search) -> list[Cause]:
    whole, rank = search.whole, search.whole.slowest
    excess = whole.excess(rank)
    reason = max(excess, key=excess.__getitem__)
    proof = excess[reason]
    if reason == "waiting" and min(whole.of("waiting").values()) >= _ALL_WAIT * search.wall:
        return []
    if reason == "computing":
        rows = whole.of("rows")
        mine = rows.pop(rank)
        others = median(rows.values())
        if 0 < _MORE_ROWS * others < mine:  # rows are counted, which proves enough
            reason = "rows"
        else:  # what a busy machine adds to a difference proves nothing, only the difference itself
            proof = min(proof, whole.ranks[rank]["computing"] - whole.longest("computing", but=rank))
    share = _BUSY_SHARE if reason == "busy" else _SHARE["slow rank"]
    if proof < share * search.wall:
        search.mixed = search.mixed or whole.without_rank() >= share * search.wall
        return []

    def of_rank(seconds_of: Callable[[Stretch], float]) -> Callable[[Stretch], float]:
        return lambda stretch: seconds_of(stretch) if stretch.slowest == rank else 0.0

    wins = {"busy": Stretch.without_programs, "rows": Stretch.with_equal_rows}
    win = of_rank(wins.get(reason, Stretch.without_rank))
    name, detail, how = _REASONS[reason]
    how = how.format(mine, others) if reason == "rows" else how
    text = f"rank {rank} takes {seconds(whole.without_rank())} longer for a step than the others{how}"
    least = {"busy": _BUSY_WIN, "rows": _ROWS_WIN}.get(reason, 0.0)
    sign = of_rank(Stretch.without_rank) if reason == "rows" else None
    return search.cause(name, win, text, least=least, sign=sign, rank=rank, detail=detail)


def _exchange(search: _Search) -> list[Cause]:
    whole = search.whole
    share = whole.exchange / search.wall
    rows = max(whole.of("rows").values())
    is_tiny = 0 < rows < _FEW_ROWS  # its computing is mostly overhead, of which larger batches have less, too
    of_rows = f", for {rows:.0f} rows" if is_tiny else ""
    text = f"{share:.0%} of a step is the exchange of gradients{of_rows}: larger batches, or fewer exchanges"
    least = _FEW_ROWS_SHARE if is_tiny else _SHARE["exchange"]
    least += _QUEUED_EXCHANGE * search.queue
    if share < least:
        return []
    # The copies of an exchange count as computing, and its threads empty the caches.
    return search.cause("exchange", Stretch.without_exchange, text, least=least, certain=0.5, kept=0.5)


def _reports(search: _Search) -> list[Cause]:
    """Reports with their uploads."""
    text = f"reports and checkpoints took {seconds(search.whole.reports * search.steps)} in all"
    return search.cause("reports", lambda stretch: stretch.reports, text, steady=False)


def _validation(search: _Search) -> list[Cause]:
    """Validations between the steps."""
    evaluating = search.whole.of("evaluating")
    rank = max(evaluating, key=evaluating.__getitem__)
    who = f"rank {rank}" if min(evaluating.values()) < 0.5 * evaluating[rank] else "the loop"
    text = f"{who} validated for {seconds(evaluating[rank] * search.steps)} in all, between its steps"
    return search.cause("validation", lambda stretch: stretch.validation, text, steady=False)


_FINDERS = (_data_or_rank, _exchange, _reports, _validation)


def _memory(search: _Search) -> list[Cause]:
    """The rank whose memory grows most, if it grows all the time."""
    growth = {rank: _growth(rows) for rank, rows in search.samples.items()}
    rank = max(growth, key=growth.__getitem__)
    if not growth[rank]:
        return []
    each = f", about {size(growth[rank] * search.epoch)} in an epoch" if search.epoch else ""
    return [Cause("memory", 0.0, f"the memory of rank {rank} grows{each}", rank=rank)]


def _growth(rows: list[dict[str, float]]) -> float:
    """Return the bytes by which memory grows in a step; 0 if it doesn't grow in each third of the run."""
    first, last = rows[0]["steps"], rows[-1]["steps"]
    begin, middle, end = (_at(rows, first + (last - first) * k / 3)["memory"] for k in (1, 2, 3))
    if min(middle - begin, end - middle) < max(_LEAK, _LEAK_SHARE * begin):
        return 0.0
    return (end - begin) * 1.5 / (last - first)


def _sentence(cause: Cause, epoch: float | None) -> str:
    """``slow rank: rank 1 takes 21 ms longer …; an epoch of 12 s would take 5.1 s (4.8 s to 5.4 s)``."""
    win = ""
    if cause.without is not None and epoch:
        best, low, high = map(seconds, cause.without)
        win = f"; an epoch of {seconds(epoch)} would take {best} without it ({low} to {high})"
    return f"{cause.name}: {cause.text}{win}. See {cause.page}"


def _healthy(search: _Search) -> str:
    computing = search.share_of("forward", "backward", "optimizer")
    return f"healthy: {computing:.0%} of the time is computing, and no cause costs enough to name"


def _unknown(why: str, **known: Any) -> Verdict:
    return Verdict("unknown", f"not enough to say: {why}", **known)


def in_words(shares: Iterable[float]) -> str:
    """Return the parts as a text and a screen reader have them: ``data 3%, forward 22%, …``."""
    return ", ".join(f"{part} {share:.0%}" for part, share in zip(PARTS, shares, strict=True))


# -- samples -------------------------------------------------------------------------------------------


def _samples(rows: list[list[float]]) -> list[dict[str, float]]:
    if not all(isfinite(sum(row)) for row in rows):
        raise ValueError("a sum is no finite number")
    return [dict(zip(COLUMNS, map(float, row), strict=True)) for row in rows]


def _mean_step(rows: list[dict[str, float]], first: float, last: float, crowd: float) -> dict[str, float]:
    """Return the parts of a rank's mean step, and what follows from them; see `verdict` for the crowd."""
    begin, end = _at(rows, first), _at(rows, last)
    step = {name: (end[name] - begin[name]) / (last - first) for name in COLUMNS}
    step["rest"] = max(step["wall"] - sum(step[part] for part in PARTS[:-1]), 0.0)
    # Only some of the draws are measured, so the whole run gives the share.
    data, computed = (rows[-1][name] - rows[0][name] for name in ("data", "computed"))
    step["computed"] = step["data"] * min(computed / max(data, 1e-9), 1.0)
    step["waiting"] = step["data"] - step["computed"]  # not for a core, but for the store
    step["outside"] = step["reports"] + step["evaluating"]
    step["own"] = step["wall"] - step["exchange"] - step["outside"]
    step["own but data"] = step["own"] - step["data"]
    step["busy"] = max(step["own"] - step["waiting"], step["queue"])
    step["computing"] = step["busy"] - step["queue"]
    step["data queue"] = step["queue"] * min(step["computed"] / max(step["busy"], 1e-9), 1.0)
    step["queued"] = step["queue"] / max(step["computing"], 1e-9)  # seconds for each one of computing
    # Without other programs: ranks that share a core still wait for each other there.
    step["undisturbed"] = min(step["waiting"] + step["computing"] * crowd, step["own"])
    return step


def _at(rows: list[dict[str, float]], step: float) -> dict[str, float]:
    """Return the sums at a step, between two samples by a straight line; of equal steps, the latest."""
    after = bisect_right(rows, step, key=itemgetter("steps"))
    left = rows[after - 1]
    if after == len(rows):
        return left
    share = (step - left["steps"]) / max(rows[after]["steps"] - left["steps"], 1e-9)
    return {name: left[name] + share * (rows[after][name] - left[name]) for name in COLUMNS}


def _shares(step: Mapping[str, float]) -> tuple[float, ...]:
    wall = max(sum(step[part] for part in PARTS), 1e-9)
    return tuple(step[part] / wall for part in PARTS)


def _epoch_length(rows: list[dict[str, float]]) -> float | None:
    """Return the steps of an epoch, from the sample at the end of the last one."""
    epochs = rows[-1]["epochs"]
    end = next(row["steps"] for row in rows if row["epochs"] == epochs)
    return end / epochs if epochs else None
