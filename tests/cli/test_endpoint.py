"""What a browser and Prometheus get over HTTP, on a real socket."""

from __future__ import annotations

import gzip
import http.client
import socket
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.show.endpoint import Endpoint
from stream_merge.cli.show.live_page import RecentResults, served_page
from stream_merge.cli.show.page_style import SERVED_POLICY
from stream_merge.cli.show.prometheus import Metrics
from tests.cli.parsed_html import Parsed


@pytest.fixture
def progress():
    return Progress("shop")


@pytest.fixture
def endpoint(progress, make_result):
    results = RecentResults()
    metrics = Metrics(progress, "shop")
    progress.set_state(State.RUNNING)
    for take in (progress.on_result, results.on_result, metrics.on_result):
        take(make_result("./lake/orders", batch_id=3, num_source_rows=7, execution_time_ms=10, phase_ms={"source": 5}))
    with Endpoint(metrics, "127.0.0.1", 0, served_page(progress, results, lambda text: text)) as opened:
        yield opened


@pytest.fixture
def ask(endpoint):
    """Return a function that sends a request and returns the answer and its body."""

    def request(method: str, path: str, **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=30)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    return request


def test_the_page_is_served_with_its_policy(ask):
    answer, body = ask("GET", "/")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert answer.getheader("Content-Security-Policy") == SERVED_POLICY
    assert SERVED_POLICY.startswith("default-src 'none'; ")
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Cache-Control") == "no-store"
    page = Parsed(body.decode())
    assert page.all("h1")[0].text == "shop running"
    assert [each.text for each in page.all("h2")] == ["./lake/orders version 4"]


def test_the_page_tells_what_is_known_when_it_is_asked_for(ask, progress, make_result):
    before, after = ("./lake/orders version 4", "./lake/orders version 9")
    assert Parsed(ask("GET", "/")[1].decode()).all("h2")[0].text == before
    progress.on_result(make_result("./lake/orders", batch_id=8))
    assert Parsed(ask("GET", "/?anything=1")[1].decode()).all("h2")[0].text == after


def test_metrics_are_those_of_prometheus(ask):
    answer, body = ask("GET", "/metrics")
    assert answer.status == 200
    assert answer.getheader("Content-Type").startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"stream_merge_up", "stream_merge_source_rows", "stream_merge_batch_seconds"} <= names


def test_metrics_are_compressed_and_in_the_format_that_is_asked_for(ask):
    answer, body = ask("GET", "/metrics", Accept_Encoding="gzip", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.getheader("Content-Encoding") == "gzip"
    assert answer.getheader("Content-Type").startswith("application/openmetrics-text; version=1.0.0")
    assert gzip.decompress(body).decode().endswith("# EOF\n")


def test_some_metrics_can_be_asked_for(ask):
    _, body = ask("GET", "/metrics?name[]=stream_merge_source_rows_total")
    values = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert values == ['stream_merge_source_rows_total{pipeline="shop",table="./lake/orders"} 7.0']


@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_head_has_the_headers_of_get_and_no_body(ask, path):
    whole, body = ask("GET", path)
    head, nothing = ask("HEAD", path)
    assert (head.status, nothing) == (200, b"")
    assert head.getheader("Content-Type") == whole.getheader("Content-Type")
    assert head.getheader("Content-Length") == str(len(body))


@pytest.mark.parametrize("path", ["/favicon.ico", "/metrics/", "/metricsx", "/index.html", "/%2e%2e/metrics"])
def test_other_paths_are_not_there(ask, path):
    for method in ("GET", "POST"):
        answer, body = ask(method, path)
        assert (answer.status, body) == (404, b"There is / and /metrics.\n")
        assert answer.getheader("X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize("path", ["/", "/metrics"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(ask, path, method):
    answer, body = ask(method, path)
    assert (answer.status, answer.getheader("Allow"), body) == (405, "GET, HEAD", b"Use GET or HEAD.\n")


def test_a_client_that_says_nothing_keeps_nobody_from_an_answer(ask, endpoint):
    """Nor from the end: the fixture closes the endpoint while the client is still there."""
    silent = socket.create_connection(("127.0.0.1", endpoint.port))
    assert ask("GET", "/")[0].status == 200
    threading.Timer(1, silent.close).start()


def test_the_log_says_where_both_are(caplog):
    caplog.set_level("INFO", "stream_merge.cli")
    with Endpoint(Metrics(Progress("shop"), "shop"), "127.0.0.1", 0, str) as opened:
        place = f"http://127.0.0.1:{opened.port}"
    assert caplog.messages == [f"metrics for Prometheus at {place}/metrics and a page at {place}/"]
