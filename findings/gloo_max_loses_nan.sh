#!/usr/bin/env bash
# With Gloo, all_reduce() with MAX or MIN loses a NaN, unless rank 0 has it.
#
# torch 2.13.0, 2026-11-29, two and three ranks. A loop that stops where any rank's loss is NaN, by the MAX of all
# losses, goes on if the NaN is on any rank but 0: all ranks get the largest of the other numbers. On rank 0 it
# arrives everywhere. SUM keeps it on each rank, and torch.max() of the same numbers in one process is NaN.
# What works: reduce whether it is NaN, loss.isnan().float() with MAX, or the sum of the losses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
import torch.distributed as dist


def main(rank, ranks, place):
    dist.init_process_group("gloo", init_method=f"file://{place}{ranks}", rank=rank, world_size=ranks)
    for holder in range(ranks):
        seen = []
        for op in ("MAX", "MIN", "SUM"):
            loss = torch.tensor(float("nan") if rank == holder else 1.0)
            dist.all_reduce(loss, getattr(dist.ReduceOp, op))
            seen.append(f"{op} {loss.item()}")
        if rank == ranks - 1:
            print(f"{ranks} ranks, NaN on rank {holder}:", *seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    for ranks in (2, 3):
        torch.multiprocessing.spawn(main, args=(ranks, f"{__file__}.store"), nprocs=ranks)
    print("in one process:", torch.tensor([1.0, float("nan")]).max().item())
END

cat > expected.txt <<'END'
2 ranks, NaN on rank 0: MAX nan MIN nan SUM nan
2 ranks, NaN on rank 1: MAX 1.0 MIN 1.0 SUM nan
3 ranks, NaN on rank 0: MAX nan MIN nan SUM nan
3 ranks, NaN on rank 1: MAX 1.0 MIN 1.0 SUM nan
3 ranks, NaN on rank 2: MAX 1.0 MIN 1.0 SUM nan
in one process: nan
END

venv/bin/python -u program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
