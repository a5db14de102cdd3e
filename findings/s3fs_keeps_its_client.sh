#!/usr/bin/env bash
# s3fs returns the same object as before, although the AWS variables have changed.
#
# s3fs 2026.9.0, 2026-11-28. An S3FileSystem is cached by its arguments. What it reads from the environment
# (AWS_ENDPOINT_URL, keys, region, profile) isn't part of them. In a notebook that changes a variable and runs
# the cell again, the new file system still goes to the old store, with the old keys.
# What works: skip_instance_cache=True, or S3FileSystem.clear_instance_cache(), or arguments instead of variables.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet s3fs==2026.9.0
cd "$folder"

cat > program.py <<'END'
import os

import s3fs

os.environ |= {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "none"}


def endpoint(**options):
    files = s3fs.S3FileSystem(**options)
    files.connect()
    return files.s3.meta.endpoint_url


os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9001"
print(f"first: {endpoint()}")
os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9002"
print(f"after the variable has changed: {endpoint()}")
print(f"with skip_instance_cache=True: {endpoint(skip_instance_cache=True)}")
END

cat > expected.txt <<'END'
first: http://127.0.0.1:9001
after the variable has changed: http://127.0.0.1:9001
with skip_instance_cache=True: http://127.0.0.1:9002
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
