"""For tests of verdicts: the samples of ranks of which the needs for a step are known."""

from labkit.runs.verdict import COLUMNS

STEPS, EPOCHS = 200, 4
STEP = {"data": 0.001, "computed": 0.001, "forward": 0.010, "backward": 0.015, "optimizer": 0.002}


def rank(*, rows=64, queue=0.0, reports=0.0, evaluating=0.0, grows=0.0, from_step=0, **step):
    """What one rank needs for a step by itself; `reports` and `evaluating` are per step, too."""
    step = {**STEP, **step}
    step["computed"] = min(step["computed"], step["data"])
    return {**step, "rows": rows, "queue": queue, "reports": reports, "evaluating": evaluating} | {
        "grows": grows,
        "from_step": from_step,
    }


def told(*ranks, steps=STEPS, exchange=0.001, every=10):
    """The samples of these ranks: in each step, all wait for the slowest one."""
    sums = [dict.fromkeys(COLUMNS, 0.0) | {"memory": 1e9} for _ in ranks]
    samples = {str(number): [] for number in range(len(ranks))}
    for number in range(steps + 1):
        for place, total in enumerate(sums):
            if number % every == 0:
                samples[str(place)].append([total[name] for name in COLUMNS])
        now = [need if number >= need["from_step"] else rank() for need in ranks]
        own = [need["data"] + need["forward"] + need["backward"] + need["optimizer"] for need in now]
        for total, need, mine in zip(sums, now, own, strict=True):
            for name in COLUMNS:
                total[name] += need.get(name, 0.0)
            waited = max(own) - mine + exchange
            total["exchange"] += waited
            total["wall"] += mine + waited + need["reports"] + need["evaluating"]
            total["steps"] += 1
            total["epochs"] = total["steps"] * EPOCHS // STEPS
            total["memory"] += need["grows"]
    return {"unseen": "", "ranks": samples}
