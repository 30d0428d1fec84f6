"""A proxy on loopback in front of an S3 server, which loses chosen answers to commits.

S3 decides a conditional PUT at one moment. The server behind looks first and writes then, in threads, so the proxy lets
one conditional PUT through at a time; plain PUTs go side by side.
"""

from __future__ import annotations

import http.client
import re
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TIMEOUT_SECONDS = 60
LOST = "lost"
LOST_FOR_GOOD = "lost for good"
NOT_SENT = "not sent"

_COMMIT = re.compile(r"/_delta_log/\d{20}\.json(?:\?|$)")
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Answer(NamedTuple):
    """What the server answered."""

    status: int
    headers: list[tuple[str, str]]
    content: bytes


class S3Proxy:
    """The proxy.

    Attributes:
        commits: How many PUTs of commits came, by their fate; those that are sent again count again.
        puts: The paths of all PUTs.
        loses_answers: Whether answers to commits are lost.
        ignores_conditions: Whether the server is one that does not know If-None-Match.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.commits = {"conditional": 0, "plain": 0, "refused": 0, LOST: 0, LOST_FOR_GOOD: 0, NOT_SENT: 0}
        self.puts: list[str] = []
        self.loses_answers = False
        self.ignores_conditions = False
        self._conditional = threading.Lock()
        self._lock = threading.Lock()
        self._number = 0
        self._doomed: dict[str, int] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="s3-proxy", daemon=True).start()

    @property
    def endpoint(self) -> str:
        """The address that clients use."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()

    def _count(self, fate: str) -> None:
        """Count a PUT of a commit."""
        with self._lock:
            self.commits[fate] += 1

    def _fate_of(self, path: str, body: bytes) -> str | None:
        """Return what is to happen to a PUT of a commit: every seventh answer is lost, some of them as often as it is
        asked."""
        if not self.loses_answers:
            return None
        with self._lock:
            key = f"{path} {hash(body)}"
            if self._doomed.get(key, 0):
                self._doomed[key] -= 1
                return LOST_FOR_GOOD
            self._number += 1
            if self._number % 21 == 0:
                self._doomed[key] = 50
                return LOST_FOR_GOOD
            if self._number % 13 == 0:
                return NOT_SENT
            return LOST if self._number % 7 == 0 else None

    def forward(self, command: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Ask the server; conditional PUTs one at a time."""
        if self.ignores_conditions:
            headers = {name: value for name, value in headers.items() if name != "If-None-Match"}
        with self._conditional if headers.get("If-None-Match") == "*" else nullcontext():
            connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=TIMEOUT_SECONDS)
            try:
                connection.request(command, path, body=body or None, headers=dict(headers))
                answer = connection.getresponse()
                return Answer(answer.status, answer.getheaders(), answer.read())
            finally:
                connection.close()

    def answer(self, command: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer | None:
        """Return what the client is answered; None where the connection is to break."""
        if command == "PUT":
            self.puts.append(path)
        if command != "PUT" or _COMMIT.search(path) is None:
            return self.forward(command, path, headers, body)
        fate = self._fate_of(path, body)
        if fate is not None:
            self._count(fate)
        if fate == NOT_SENT:
            return None
        answer = self.forward(command, path, headers, body)
        self._count("conditional" if headers.get("If-None-Match") == "*" else "plain")
        if answer.status == HTTPStatus.PRECONDITION_FAILED:
            self._count("refused")
        return answer if fate is None else None


def _handler_of(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = TIMEOUT_SECONDS

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            answer = proxy.answer(self.command, self.path, headers, body)
            if answer is None:
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            length = str(len(answer.content))
            for name, value in answer.headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = value
                if name.lower() not in _HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer  # noqa: N815 - the names of the base class

    return Handler
