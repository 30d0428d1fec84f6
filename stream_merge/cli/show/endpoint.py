"""Serves the metrics of a running pipeline to Prometheus, and its page to a browser, until the pipeline ends."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from stream_merge.cli.errors import ExitCode, PipelineError
from stream_merge.cli.show.page_style import SERVED_POLICY
from stream_merge.cli.show.prometheus import Metrics

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

logger: logging.Logger = logging.getLogger("stream_merge.cli")

_SECURITY = [
    ("Content-Security-Policy", SERVED_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]
_METHODS = ("GET", "HEAD")
_TIMEOUT = 30
"""Seconds that a silent client may keep a thread."""


class Endpoint:
    """The HTTP endpoint with `/metrics` and `/`, open while the block runs; its thread ends with the block.

    Args:
        metrics: The metrics to serve.
        address: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        page: Makes the page.

    Attributes:
        port: The port in use.
    """

    def __init__(self, metrics: Metrics, address: str, port: int, page: Callable[[], str]) -> None:
        self.port: int = port
        self._app = make_app(metrics, page)
        self._address = address

    def __enter__(self) -> Endpoint:
        try:
            self._server = _serve(self._address, self.port, self._app)
        except OSError as error:
            raise PipelineError(
                f"The metrics cannot be served at {self._address}:{self.port}: {error.strerror or error}. "
                "Choose another prometheus_port in [metrics], or 0 for a free one.",
                ExitCode.CANNOT_START,
            ) from None
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="stream-merge-endpoint", daemon=True)
        self._thread.start()
        logger.info(
            "metrics for Prometheus at http://%s:%d/metrics and a page at http://%s:%d/",
            self._address,
            self.port,
            self._address,
            self.port,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def make_app(metrics: Metrics, page: Callable[[], str]) -> WSGIApplication:
    """Return the application that answers `/metrics` and `/`.

    Args:
        metrics: The metrics to serve.
        page: Makes the page.
    """
    serve_metrics = make_wsgi_app(metrics.registry)

    def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/") or "/"
        if path not in ("/", "/metrics"):
            return _answer(start_response, method, HTTPStatus.NOT_FOUND, "text/plain", "There is / and /metrics.\n")
        if method not in _METHODS:
            return _answer(
                start_response,
                method,
                HTTPStatus.METHOD_NOT_ALLOWED,
                "text/plain",
                f"Use {' or '.join(_METHODS)}.\n",
                ("Allow", ", ".join(_METHODS)),
            )
        if path == "/":
            return _answer(start_response, method, HTTPStatus.OK, "text/html", page())
        if method == "GET":
            found: Iterable[bytes] = serve_metrics(environ, start_response)
            return found
        return _head_of(serve_metrics, environ, start_response)

    return serve


def _answer(
    start_response: StartResponse,
    method: str,
    status: HTTPStatus,
    content_type: str,
    text: str,
    *headers: tuple[str, str],
) -> list[bytes]:
    body = text.encode("utf-8", "replace")
    start_response(
        f"{status.value} {status.phrase}",
        [
            ("Content-Type", f"{content_type}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            *_SECURITY,
            *headers,
        ],
    )
    return [] if method == "HEAD" else [body]


def _head_of(app: Any, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """Answer HEAD with the headers of the answer to GET; Prometheus's application knows only GET."""
    answered: list[Any] = []

    def keep(status: str, headers: list[tuple[str, str]]) -> None:
        answered[:] = [status, headers]

    length = sum(map(len, app({**environ, "REQUEST_METHOD": "GET"}, keep)))
    status, headers = answered
    start_response(status, [*headers, ("Content-Length", str(length))])
    return []


class _Server(ThreadingMixIn, WSGIServer):
    # A client that is slow to read its answer does not keep the pipeline from ending.
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a client went away or said nothing, which is no fault of the pipeline."""
        del request
        logger.debug("no answer to %s", client_address, exc_info=sys.exc_info())


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class has
        """Log nothing: Prometheus asks every few seconds."""


def _serve(address: str, port: int, app: WSGIApplication) -> WSGIServer:
    """Return a server that listens on an address, which decides between IPv4 and IPv6."""
    family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]

    class Server(_Server):
        address_family = family

    return make_server(str(place[0]), port, app, Server, handler_class=_Handler)
