#!/usr/bin/env bash
# Ray Data's from_huggingface reads a stream's files from the Hub, without the filter and map that the stream has.
#
# Ray 2.60.0, datasets 5.2.0, pyarrow 26.0.1, aiohttp 3.14.5, 2026-11-28. Of a stream, Ray asks the Hub for the
# Parquet files of a data set with its name, and reads these if there are any. The stream's filter(), map() and take()
# have no effect then. A data set that isn't a stream is compared with the Hub's first; a stream isn't. Nothing warns.
# A stream of local files has the name of its format, such as "parquet", and is looked up, too; without a network that
# is an error. Here, a server on this machine stands for the Hub and has the file of the stream.
# What works: filter and map in Ray Data; from_items(list(stream)) of what fits into memory.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[data]==2.60.0" datasets==5.2.0 aiohttp==3.14.5 pyarrow==26.0.1 numpy==2.4.6
cd "$folder"

cat > program.py <<'END'
import logging
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import datasets
import pyarrow
import pyarrow.parquet
import ray.data

FILE = Path("movies.parquet")


class Hub(BaseHTTPRequestHandler):
    """Returns the file, or the part of it that is asked for."""

    def do_HEAD(self):
        self.do_GET(send=False)

    def do_GET(self, send=True):
        content = FILE.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            content = content[first : last + 1]
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if send:
            self.wfile.write(content)


def values(rows):
    return [row["x"] for row in rows]


pyarrow.parquet.write_table(pyarrow.table({"x": range(8)}), FILE)
server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
answer = mock.Mock(status_code=200, json=lambda: [f"http://127.0.0.1:{server.server_port}/{FILE}"])
ray.init("local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
logging.getLogger("ray.data").setLevel(logging.ERROR)
ray.data.DataContext.get_current().enable_progress_bars = False
stream = datasets.load_dataset("parquet", data_files=str(FILE), split="train", streaming=True)
STREAMS = {
    "the stream": stream,
    "filter": stream.filter(lambda row: row["x"] > 5),
    "map": stream.map(lambda row: {"x": -row["x"]}),
    "take": stream.take(2),
}
for name, rows in STREAMS.items():
    with mock.patch("requests.get", return_value=answer) as get:
        in_ray = values(ray.data.from_huggingface(rows).take_all())
    print(f"{name}: {values(rows)}, in Ray {in_ray}")
print("asked for", get.call_args.args[0])
END

cat > expected.txt <<'END'
the stream: [0, 1, 2, 3, 4, 5, 6, 7], in Ray [0, 1, 2, 3, 4, 5, 6, 7]
filter: [6, 7], in Ray [0, 1, 2, 3, 4, 5, 6, 7]
map: [0, -1, -2, -3, -4, -5, -6, -7], in Ray [0, 1, 2, 3, 4, 5, 6, 7]
take: [0, 1], in Ray [0, 1, 2, 3, 4, 5, 6, 7]
asked for https://huggingface.co/api/datasets/parquet/parquet/default/train
END

export HF_HOME="$folder/home" HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0
venv/bin/python program.py > seen.txt 2> log.txt || { cat seen.txt log.txt; exit 1; }
cat seen.txt
diff expected.txt seen.txt
