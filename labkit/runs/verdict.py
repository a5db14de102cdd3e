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

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median, stdev
from typing import Any

from labkit.display.formatting import seconds, size
from labkit.runs.record import RunRecord

PARTS = ("data", "forward", "backward", "exchange", "optimizer", "rest")
COLUMNS = (
    *("steps", "epochs", "rows", "wall", "data", "computed", "forward", "backward", "exchange", "optimizer"),
    *("queue", "reports", "evaluating", "memory"),
)
_STRETCHES, _AGREE = 5, 4
_LEAST_STEPS, _LEAST_SECONDS = 20, 1.0  # of all ranks, after the first step
# The share of its time that a run must win without a cause. Of another program on the machine it is higher,
# because a busy machine takes a bit from every run.
_SHARE = {"data": 0.15, "slow rank": 0.15, "exchange": 0.35, "reports": 0.1, "validation": 0.1}
_BUSY_SHARE = 0.2
_BUSY_EXCHANGE = 0.5  # where threads wait for a core most of the time, so do those that exchange
_MORE_ROWS = 1.15  # times the rows of the other ranks
_LEAK, _LEAK_SHARE = 32e6, 0.05  # bytes between two thirds of a run, and of all its memory

_HOW = {
    "waiting": "waiting for a store or another process",
    "computing": "computing rows in the training process",
}
# What to read: the path of the page in the repository, and its section.
PAGES = {
    "data": ("lessons/03c_whole_pipeline.py", "More than fits, while you train"),
    "slow rank": ("lessons/09_scaling.py", "A straggler"),
    "exchange": ("lessons/03_torch_trainer.py", "When two workers win"),
    "reports": ("lessons/03b_checkpoints.py", "A place for checkpoints"),
    "validation": ("lessons/06_async_validation.py", "Validate while the training goes on"),
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
        path, section = PAGES[self.name]
        kind, _, name = path.rpartition("/")
        if kind == "lessons":
            return f'lesson {name.partition("_")[0]}, "{section}"'
        return f'{path}, "{section}"'


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
        causes = [{**asdict(cause), "page": cause.page} for cause in self.causes]
        shares = {str(rank): dict(zip(PARTS, of, strict=True)) for rank, of in (self.shares or {}).items()}
        about = {"verdict": self.name, "sentence": self.sentence, "seconds_per_epoch": self.epoch}
        return {**about, "causes": causes, "shares": shares}


class Stretch:
    """The mean step of each rank within some steps of a run."""

    def __init__(self, samples: Mapping[int, list[dict[str, float]]], first: float, last: float) -> None:
        self.ranks = {}
        for rank, of_rank in samples.items():
            begin, end = _at(of_rank, first), _at(of_rank, last, latest=True)
            step = {name: (end[name] - begin[name]) / max(last - first, 1e-9) for name in COLUMNS}
            inside = sum(step[part] for part in PARTS[:-1])
            step["rest"] = max(step["wall"] - inside, 0.0)
            step["own"] = step["wall"] - step["exchange"] - step["reports"] - step["evaluating"]
            # Only some of the draws are measured, so the whole run gives the share.
            all_data = of_rank[-1]["data"] - of_rank[0]["data"]
            computed = (of_rank[-1]["computed"] - of_rank[0]["computed"]) / max(all_data, 1e-9)
            step["computed"] = step["data"] * min(computed, 1.0)
            step["waiting"] = step["data"] - step["computed"]  # not for a core, but for the store
            step["busy"] = max(step["own"] - step["waiting"], step["queue"])
            step["computing"] = step["busy"] - step["queue"]
            step["outside"] = step["reports"] + step["evaluating"]
            self.ranks[rank] = step

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
    def reports(self) -> float:
        """What reports cost. While one rank evaluates, another may wait for it in a report: that isn't it."""
        return self.longest("outside") - self.longest("evaluating")

    @property
    def slowest(self) -> int:
        """The rank that the others wait for."""
        own = self.of("own")
        return max(own, key=own.__getitem__)

    # -- what a step would win -----------------------------------------------------------------------

    def without_data(self) -> float:
        """Return what a step wins if no rank waits for data."""
        return self.longest("own") - max(step["own"] - step["data"] for step in self.ranks.values())

    def without_rank(self) -> float:
        """Return what a step wins if the slowest rank is as fast as the next one."""
        return self.longest("own") - self.longest("own", but=self.slowest) if len(self.ranks) > 1 else 0.0

    def excess(self, rank: int) -> dict[str, float]:
        """Return how much longer a rank needs for a step than all others, by reason.

        The reasons: waiting for data, computing its data, being busy (other programs have the core), and
        computing. On a busy machine, a rank with more to compute also waits longer for a core, in proportion.
        """
        step, others = self.ranks[rank], [s for r, s in self.ranks.items() if r != rank]
        usual = max(other["queue"] / max(other["computing"], 1e-9) for other in others)
        more = {
            "waiting": step["waiting"] - max(other["waiting"] for other in others),
            "busy": max(step["queue"] - usual * step["computing"], 0.0),
        }
        unhindered = 1 - more["busy"] / max(step["busy"], 1e-9)
        more["data"] = step["computed"] * unhindered - max(other["computed"] for other in others)
        total = step["own"] - max(other["own"] for other in others)
        return {**more, "computing": total - sum(more.values())}


def verdict(parts: Mapping[str, Any], *, start: float | None = None, total: float | None = None) -> Verdict:
    """Return why a run is slow.

    Args:
        parts: as in the record: the samples of each rank, and why there are none.
        start: seconds until the first step.
        total: seconds of the run.
    """
    unseen = parts.get("unseen")
    if unseen:
        return _unknown(f"the parts of a step aren't measured {unseen}")
    try:
        samples = {int(rank): _samples(rows) for rank, rows in parts.get("ranks", {}).items()}
    except (TypeError, ValueError, AttributeError):
        return _unknown("the record is damaged")
    if not samples or not all(samples.values()):
        return _unknown("no parts of steps were measured")
    first = max(rows[0]["steps"] for rows in samples.values())
    last = min(rows[-1]["steps"] for rows in samples.values())
    if last <= first:
        return _unknown("too few steps")
    whole = Stretch(samples, first, last)
    shares = {rank: _shares(step) for rank, step in whole.ranks.items()}
    steps = last - first
    wall = steps * whole.longest("wall")
    if steps < _LEAST_STEPS or wall < _LEAST_SECONDS:
        return replace(_unknown(f"{steps:.0f} steps in {seconds(wall)}"), shares=shares)
    cuts = [first + steps * k / _STRETCHES for k in range(_STRETCHES + 1)]
    stretches = [Stretch(samples, *pair) for pair in zip(cuts, cuts[1:], strict=False)]
    length = _epoch_length(next(iter(samples.values())))
    epoch = wall / steps * length if length else None
    search = _Search(whole, stretches, steps, length)
    causes = [cause for find in (_data_or_rank, _exchange, _outside) for cause in find(search)]
    if start is not None and total is not None and start > total - start:
        text = f"the start took {seconds(start)} of the {seconds(total)} that the run lasted"
        causes.append(Cause("start", start, text))
    causes.sort(key=lambda cause: -cause.seconds)
    causes += _memory(samples, length)
    if search.mixed and not causes:
        return replace(_unknown("what was slow changed during the run"), shares=shares, epoch=epoch)
    name = causes[0].name if causes else "healthy"
    return Verdict(name, _sentence(causes, search, epoch), tuple(causes), epoch, shares)


def verdict_of(record: RunRecord) -> Verdict:
    """Return the verdict on a past run."""
    return verdict(record.parts, start=record.seconds_to_start, total=record.seconds_total)


@dataclass
class _Search:
    """A run, in one piece and in stretches; the functions below look for causes in it."""

    whole: Stretch
    stretches: list[Stretch]
    steps: float
    steps_per_epoch: float | None
    mixed: bool = False  # whether a cause was there for a part of the run only

    @property
    def busy_share(self) -> float:
        """The share of time in which other programs had the core."""
        return sum(self.whole.of("queue").values()) / sum(self.whole.of("wall").values())

    def cause(
        self,
        name: str,
        win: Callable[[Stretch], float],
        text: str,
        *,
        least: float | None = None,
        certain: float = 1.0,
        steady: bool = True,
        **about: Any,
    ) -> list[Cause]:
        """Return the cause if a step would win enough without it.

        Args:
            win: seconds that a step of a stretch would win.
            certain: the share of them that is won for sure.
            steady: whether it must be there in most stretches.
        """
        share = _SHARE[name] if least is None else least
        won, base = win(self.whole), self.whole.longest("wall")
        if won < share * base:
            return []
        in_each = [win(stretch) for stretch in self.stretches]
        if steady:
            there = [w >= 0.75 * share * s.seconds for w, s in zip(in_each, self.stretches, strict=True)]
            if sum(there) < _AGREE:
                self.mixed = True
                return []
        without = None
        if self.steps_per_epoch:
            left = [s.seconds - w for w, s in zip(in_each, self.stretches, strict=True)]
            error = max(2 * stdev(left) / _STRETCHES**0.5 if steady else 0.0, 0.05 * base)
            error += self.busy_share * (base - won)  # other programs may use more or less the next time
            low, high = base - won - error, base - won * certain + error
            best, low, high = (max(value, 0.0) * self.steps_per_epoch for value in (base - won, low, high))
            without = (best, low, high)
        return [Cause(name, won * self.steps, text, without=without, **about)]


def _data_or_rank(search: _Search) -> list[Cause]:
    """Waiting for data on one rank or all, and a rank that the others wait for."""
    whole, causes = search.whole, []
    if len(whole.ranks) > 1:
        causes += _slow_rank(search, whole.slowest)
    if any(cause.name == "data" for cause in causes):
        return causes
    step = whole.ranks[whole.slowest]
    kind = "waiting" if step["waiting"] > 0.5 * step["data"] else "computing"
    text = f"{_every(whole)} spends {seconds(step['data'])} of a step on its data, {_HOW[kind]}"
    certain = 0.3 if kind == "computing" else 0.9
    return causes + search.cause("data", Stretch.without_data, text, certain=certain, detail=kind)


def _slow_rank(search: _Search, rank: int) -> list[Cause]:
    whole = search.whole
    excess = whole.excess(rank)
    why = max(excess, key=excess.__getitem__)
    rows = whole.of("rows")
    others = median(value for r, value in rows.items() if r != rank)
    has_more_rows = why == "computing" and 0 < _MORE_ROWS * others < rows[rank]
    # What a busy machine adds to a difference proves nothing, only the difference itself; rows are counted.
    proof = excess[why]
    if why == "computing" and not has_more_rows:
        proof = min(proof, whole.ranks[rank]["computing"] - whole.longest("computing", but=rank))
    least = _SHARE["slow rank"] * whole.longest("wall")
    if whole.without_rank() >= least > proof:
        search.mixed = True
        return []

    def win(stretch: Stretch) -> float:
        return stretch.without_rank() if stretch.slowest == rank else 0.0

    more = f"rank {rank} takes {seconds(whole.without_rank())} longer for a step than the others"
    if why in ("waiting", "data"):
        detail = "waiting" if why == "waiting" else "computing"
        return search.cause("data", win, f"{more}, {_HOW[detail]}", rank=rank, detail=detail)
    if why == "busy":
        text = f"{more}: other programs take its core"
        return search.cause("slow rank", win, text, least=_BUSY_SHARE, rank=rank, detail="busy")
    if has_more_rows:
        text = f"{more}: it has {rows[rank]:.0f} rows in a step, the others {others:.0f}"
        return search.cause("slow rank", win, text, rank=rank, detail="rows")
    return search.cause("slow rank", win, f"{more}, computing", rank=rank, detail="computing")


def _exchange(search: _Search) -> list[Cause]:
    whole = search.whole
    share = whole.exchange / whole.longest("wall")
    text = f"{share:.0%} of a step is the exchange of gradients: larger batches, or fewer exchanges"
    is_busy = sum(whole.of("queue").values()) > 0.8 * sum(whole.of("busy").values())
    least = _BUSY_EXCHANGE if is_busy else None
    return search.cause("exchange", lambda stretch: stretch.exchange, text, least=least, certain=0.5)


def _outside(search: _Search) -> list[Cause]:
    """Reports with their uploads, and validations: what a loop does between its steps."""
    whole, steps = search.whole, search.steps
    took = seconds(whole.reports * steps)
    causes = search.cause(
        "reports", lambda s: s.reports, f"reports and checkpoints took {took}", steady=False, certain=0.9
    )
    took, evaluating = seconds(whole.longest("evaluating") * steps), whole.of("evaluating")
    rank = max(evaluating, key=evaluating.__getitem__)
    who = f"rank {rank}" if min(evaluating.values()) < 0.5 * evaluating[rank] else "the loop"
    text = f"{who} validated for {took} between its steps"
    return causes + search.cause(
        "validation", lambda s: s.longest("evaluating"), text, steady=False, certain=0.9
    )


def _memory(samples: Mapping[int, list[dict[str, float]]], length: float | None) -> list[Cause]:
    """The rank whose memory grows most, if it grows all the time."""
    causes = []
    for rank, rows in samples.items():
        first, last = rows[0]["steps"], rows[-1]["steps"]
        thirds = [_at(rows, first + (last - first) * k / 3)["memory"] for k in (1, 2, 3)]
        least = max(_LEAK, _LEAK_SHARE * thirds[0])
        if thirds[1] - thirds[0] >= least and thirds[2] - thirds[1] >= least:
            growth = (thirds[2] - thirds[0]) * 1.5 / (last - first)  # of a step
            each = f", about {size(growth * length)} in an epoch" if length else ""
            causes.append((growth, Cause("memory", 0.0, f"the memory of rank {rank} grows{each}", rank=rank)))
    return [max(causes, key=lambda pair: pair[0])[1]] if causes else []


def _sentence(causes: list[Cause], search: _Search, epoch: float | None) -> str:
    """``slow rank: rank 1 takes 21 ms longer …; an epoch of 12 s would take 5.1 s (4.8 s to 5.4 s)``."""
    said = []
    for cause in causes:
        words = f"{cause.name}: {cause.text}"
        if cause.without is not None and epoch:
            best, low, high = map(seconds, cause.without)
            words += f"; an epoch of {seconds(epoch)} would take {best} without it ({low} to {high})"
        said.append(f"{words}. See {cause.page}")
    if said:
        return ". ".join(said)
    whole = search.whole
    computing = sum(
        sum(step[part] for part in ("forward", "backward", "optimizer")) for step in whole.ranks.values()
    )
    share = computing / sum(whole.of("wall").values())
    queue = search.busy_share
    busy = f"; for {queue:.0%} of the time, other programs had the core" if queue >= 0.1 else ""
    return f"healthy: {share:.0%} of the time is computing, and no cause costs enough to name{busy}"


def _epoch_length(rows: list[dict[str, float]]) -> float | None:
    """Return the steps of an epoch, from the sample at the end of the last one."""
    epochs = rows[-1]["epochs"]
    ends = [row["steps"] for row in rows if row["epochs"] == epochs > 0]
    return ends[0] / epochs if ends else None


def in_words(shares: Iterable[float]) -> str:
    """Return the parts as a text and a screen reader have them: ``data 3%, forward 22%, …``."""
    return ", ".join(f"{part} {share:.0%}" for part, share in zip(PARTS, shares, strict=True))


def _every(whole: Stretch) -> str:
    return "every rank" if len(whole.ranks) > 1 else "the loop"


def _unknown(why: str) -> Verdict:
    return Verdict("unknown", f"not enough to say: {why}")


def _samples(rows: list[list[float]]) -> list[dict[str, float]]:
    return [dict(zip(COLUMNS, map(float, row), strict=True)) for row in rows]


def _shares(step: Mapping[str, float]) -> tuple[float, ...]:
    wall = max(sum(step[part] for part in PARTS), 1e-9)
    return tuple(step[part] / wall for part in PARTS)


def _at(samples: list[dict[str, float]], step: float, *, latest: bool = False) -> dict[str, float]:
    """Return the sums at a step, between two samples by a straight line.

    Where several samples have the same step, such as after the last one, that is the first of them, or the
    `latest`.
    """
    if latest and step >= samples[-1]["steps"]:
        return samples[-1]
    after = min(bisect_left(samples, step, key=lambda sample: sample["steps"]), len(samples) - 1)
    right, left = samples[after], samples[max(after - 1, 0)]
    span = right["steps"] - left["steps"]
    share = (step - left["steps"]) / span if span else 1.0
    return {name: left[name] + share * (right[name] - left[name]) for name in COLUMNS}
