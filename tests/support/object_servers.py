"""The object stores that the storage tests run against: the lab's own server, moto's, and one that is named.

`KINDS` are what the same cases run against; the third is there only where LABKIT_S3_ENDPOINT names one.
"""

import contextlib
import os
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


XML = {"Content-Type": "application/xml", "ETag": '"1"'}


def error(code: str, message: str = "no", **more: str) -> bytes:
    """The body of a refusal."""
    fields = {"Code": code, "Message": message, **more}
    elements = [f"<{name}>{text}</{name}>" for name, text in fields.items()]
    return f"<Error>{''.join(elements)}</Error>".encode()


def answering(*answers: tuple[int, str]) -> contextlib.AbstractContextManager[str]:
    """The URL of a server that refuses: each request gets the next (status, S3 code), at last the last.

    Without a code it answers with a web page.
    """
    left = list(answers)

    def answer(_: web.Request) -> tuple[int, dict[str, str], bytes]:
        status, code = left.pop(0) if len(left) > 1 else left[0]
        if not code:
            return status, {"Content-Type": "text/html"}, f"<!DOCTYPE html><p>{status}</p>".encode()
        return status, XML, error(code)

    return web.serving(answer)


def of_others(refusal: tuple[int, bytes] | None, accepted: str) -> contextlib.AbstractContextManager[str]:
    """The URL of a small store that refuses each request unless `accepted` is in its Authorization header.

    A refusal is (status, body). Its endpoint may have a path.
    """
    objects: dict[str, bytes] = {}

    def answer(request: web.Request) -> tuple[int, dict[str, str], bytes]:
        if refusal is not None and accepted not in request.headers.get("Authorization", ""):
            status, body = refusal
            return status, XML, body
        path = request.path.partition("?")[0].removeprefix("/storage/v1/s3").strip("/")
        if "/" not in path:  # the bucket
            return 200, XML, b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"
        if request.command == "PUT":
            objects[path] = request.body
            return 200, XML, b""
        if request.command == "DELETE":
            objects.pop(path, None)
            return 204, XML, b""
        if path not in objects:
            return 404, XML, error("NoSuchKey")
        return 200, XML, objects[path]

    return web.serving(answer)
