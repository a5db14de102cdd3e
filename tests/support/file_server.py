"""A web server on loopback for tests of downloads."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves `files` (path without the leading slash -> bytes) until it is closed.

    Attributes:
        files: may be changed while it runs.
        requests: the paths that were asked for, in their order.
        announced: path -> Content-Length to claim instead of the true one.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.requests = dict(files), []
        self.announced: dict[str, int] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> "FileServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.lstrip("/")
                server.requests.append(path)
                body = server.files.get(path)
                if body is None:
                    return self.send_error(404)
                self.send_response(200)
                self.send_header("Content-Length", str(server.announced.get(path, len(body))))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
