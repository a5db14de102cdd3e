"""The object stores that the storage tests run against: the lab's own server, moto's, and one that is named.

`KINDS` are what the same cases run against; the third is there only where LABKIT_S3_ENDPOINT names one.
"""

import contextlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

import web
from labkit.local import storage
from labkit.local.lab import Lab
from labkit.settings import Settings

NAMED = {
    name: os.environ[name]
    for name in ("LABKIT_S3_ENDPOINT", "LABKIT_S3_ACCESS_KEY", "LABKIT_S3_SECRET_KEY")
    if name in os.environ
}
KINDS = ["embedded", "moto", *(["named"] if "LABKIT_S3_ENDPOINT" in NAMED else [])]


@contextlib.contextmanager
def embedded(home: Path) -> Iterator[storage.Store]:
    """The lab's own server, with its home there; whatever was started in it is stopped."""
    try:
        yield storage.start(settings=Settings(home=home))
    finally:
        for handle in [handle for handle in storage._handles if handle.home == home]:
            handle.stop()
        Lab(home).stop()


def process(store: storage.Store) -> psutil.Process:
    """The process of an embedded server."""
    (member,) = Lab(store.home).running("store")
    return member.process


@contextlib.contextmanager
def moto(home: Path) -> Iterator[storage.Store]:
    """moto's server, in this process: another reading of the S3 API, which checks no signatures."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        with storage.connect(
            f"http://{host}:{port}", "anything", "at-all", settings=Settings(home=home)
        ) as store:
            yield store
    finally:
        server.stop()


@contextlib.contextmanager
def named(home: Path) -> Iterator[storage.Store]:
    with storage.start(settings=Settings.from_env({**NAMED, "LABKIT_HOME": str(home)})) as store:
        yield store


def start(kind: str, home: Path) -> contextlib.AbstractContextManager[storage.Store]:
    return {"embedded": embedded, "moto": moto, "named": named}[kind](home)


def answering(*answers: tuple[int, str]) -> contextlib.AbstractContextManager[str]:
    """The URL of a server that refuses: each request gets the next (status, S3 code), at last the last.

    Without a code it answers with a web page.
    """
    left = list(answers)

    def answer(_: str) -> tuple[int, dict[str, str], bytes]:
        status, code = left.pop(0) if len(left) > 1 else left[0]
        if not code:
            return status, {"Content-Type": "text/html"}, f"<!DOCTYPE html><p>{status}</p>".encode()
        error = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
        return status, {"Content-Type": "application/xml"}, error.encode()

    return web.serving(answer)


@contextlib.contextmanager
def of_others(refusal: tuple[int, str, str, str] | None, accepted: str) -> Iterator[str]:
    """The URL of a small store that refuses each request unless `accepted` is in its Authorization header.

    A refusal is (status, S3 code, message, access key). Its endpoint may have a path.
    """
    objects: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/xml")
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if refusal is not None and accepted not in self.headers.get("Authorization", ""):
                status, code, message, key = refusal
                named = f"<AWSAccessKeyId>{key}</AWSAccessKeyId>" if key else ""
                text = f"<Error><Code>{code}</Code><Message>{message}</Message>{named}</Error>"
                return self.answer(status, text.encode())
            path = self.path.partition("?")[0].removeprefix("/storage/v1/s3").strip("/")
            if "/" not in path:  # the bucket
                return self.answer(200, b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
            if self.command == "PUT":
                objects[path] = body
            if self.command == "DELETE":
                objects.pop(path, None)
                return self.answer(204)
            if path not in objects:
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return self.answer(200, b"" if self.command == "PUT" else objects[path])

        do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = do_any

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
