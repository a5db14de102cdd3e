#!/usr/bin/env bash
# What torch.distributed.checkpoint raises isn't caught by "except Exception".
#
# torch 2.13.0, 2026-11-29. A checkpoint that lacks a key, or has another shape, ends dcp.load() with a
# CheckpointException, which is a BaseException, as KeyboardInterrupt is. So a loop that falls back to fresh weights
# with "except Exception" ends instead, and a launcher that reports exceptions of its workers may not report it.
# The text that says what is wrong is inside: failures has the error of each rank. Numbers don't end it: a checkpoint of float32
# is loaded into integers without a word, and 2.7 is 2.
# What works: except CheckpointException, and error.failures[rank] for the reason.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import torch
import torch.distributed.checkpoint as dcp

dcp.save({"weights": torch.tensor([1.5, 2.7])}, checkpoint_id="saved")
for state in ({"weights": torch.zeros(2), "bias": torch.zeros(1)}, {"weights": torch.zeros(3)}):
    try:
        try:
            dcp.load(state, checkpoint_id="saved")
        except Exception:
            print("except Exception")
    except BaseException as error:
        reason, _ = error.failures[0]
        print(f"{type(error).__name__}({type(error).__bases__[0].__name__}):", str(reason).splitlines()[-1][:60])
state = {"weights": torch.zeros(2, dtype=torch.int64)}
dcp.load(state, checkpoint_id="saved")
print("1.5 and 2.7 loaded into integers:", state["weights"].tolist())
END

cat > expected.txt <<'END'
CheckpointException(BaseException): Missing key in checkpoint state_dict: bias.
CheckpointException(BaseException): Size mismatch between saved torch.Size([2]) and current: tor
1.5 and 2.7 loaded into integers: [1, 2]
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
