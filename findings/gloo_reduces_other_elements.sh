#!/usr/bin/env bash
# With Gloo, all_reduce() and broadcast() of a column change other elements than those of the column.
#
# torch 2.13.0, 2026-11-29. A view whose elements aren't next to each other in memory, such as totals[:, 0] or
# numbers[::2], is taken for as many elements from its beginning on, one after the other. Those are reduced: of a table
# with two columns, the first half of the rows, both columns, while the rest of the column stays as it was.
# No error, no warning; the elements beside the view are overwritten. all_gather() of the same view is right, and
# so is a transposed tensor, which has no gaps.
# What works: reduce a copy, totals[:, 0].contiguous(), and write it back; or reduce the whole tensor.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
import torch.distributed as dist


def main(rank, place):
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    rows = torch.arange(8.0).reshape(4, 2)

    reduced = rows.clone()
    dist.all_reduce(reduced[:, 0])
    sent = rows * (rank + 1)
    dist.broadcast(sent[:, 0], src=0)
    column = rows[:, 0].contiguous()
    dist.all_reduce(column)
    both = [torch.zeros(4), torch.zeros(4)]
    dist.all_gather(both, rows[:, 0])
    if rank == 1:
        print("before", rows.tolist())
        print("all_reduce of column 0", reduced.tolist())
        print("all_reduce of a copy of it", column.tolist())
        print("broadcast of rank 0's column 0, to twice these rows", sent.tolist())
        print("all_gather of it", both[0].tolist())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(main, args=[f"{__file__}.store"], nprocs=2)
END

cat > expected.txt <<'END'
before [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
all_reduce of column 0 [[0.0, 2.0], [4.0, 6.0], [4.0, 5.0], [6.0, 7.0]]
all_reduce of a copy of it [0.0, 4.0, 8.0, 12.0]
broadcast of rank 0's column 0, to twice these rows [[0.0, 1.0], [2.0, 3.0], [8.0, 10.0], [12.0, 14.0]]
all_gather of it [0.0, 2.0, 4.0, 6.0]
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
