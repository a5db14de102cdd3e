#!/usr/bin/env bash
# A shuffled stream of Hugging Face's datasets that resumes repeats rows, and never yields others.
#
# datasets 5.2.0, 2026-11-28. state_dict() has the place in the source and not the rows in the shuffle buffer. After
# load_state_dict() the buffer is filled from there on, so rows that were waiting in it are lost, and the order
# after the resume differs from the one of an uninterrupted pass. Nothing warns about the number of rows.
# What works: resume at the start of an epoch, or shuffle the whole data set before it becomes a stream.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0
cd "$folder"

cat > program.py <<'END'
from datasets import Dataset

STREAM = Dataset.from_dict({"row": range(1000)}).to_iterable_dataset(num_shards=4)


def numbers(stream):
    return (row["row"] for row in stream)


shuffled = STREAM.shuffle(seed=7, buffer_size=100)
read = []
for number in numbers(shuffled):
    read.append(number)
    if len(read) == 200:
        break
state = shuffled.state_dict()

resumed = STREAM.shuffle(seed=7, buffer_size=100)
resumed.load_state_dict(state)
rest = list(numbers(resumed))
print(f"an uninterrupted pass: {len(set(numbers(STREAM.shuffle(seed=7, buffer_size=100))))} rows")
print(f"after 200 rows and a resume: {len(rest)} more")
print(f"read twice: {len(set(read) & set(rest))}, never: {len(set(range(1000)) - set(read) - set(rest))}")
END

cat > expected.txt <<'END'
an uninterrupted pass: 1000 rows
after 200 rows and a resume: 750 more
read twice: 14, never: 64
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
