"""Web servers on loopback: one that answers as a test says, and one that has files."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Request(BaseHTTPRequestHandler):
    """A request with its `path`, `command`, `headers` and `body`."""

    protocol_version = "HTTP/1.1"  # clients may ask before they send a body
    body = b""


@contextlib.contextmanager
def serving(answer: Callable[[Request], tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """A server until the end of the block; yields its URL.

    Args:
        answer: called with each request; returns status, headers and body.
    """

    class Handler(Request):
        def reply(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = reply

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Files:
    """What a server has.

    Attributes:
        files: path without the leading slash -> bytes; may be changed while it runs.
        requests: the paths that were asked for, in their order.
        announced: path -> Content-Length to claim instead of the true one.
        url: of the server.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.announced: dict[str, int] = {}

    def __call__(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        path = request.path.lstrip("/")
        self.requests.append(path)
        body = self.files.get(path, b"")
        headers = {"Content-Length": str(self.announced.get(path, len(body)))}
        return 200 if path in self.files else 404, headers, body


@contextlib.contextmanager
def file_server() -> Iterator[Files]:
    """A server of files."""
    files = Files()
    with serving(files) as files.url:
        yield files
