"""The files of the containers fit together, and to the command; `docker compose` itself checks them where there is
one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stream_merge import MergeResult
from stream_merge.cli.file.load import load_pipeline
from stream_merge.cli.query.tables import build_sink
from stream_merge.cli.run.progress import Progress, State
from stream_merge.cli.show.prometheus import Metrics
from stream_merge.metrics import COUNTERS, PHASES, delta_name

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
COMPOSE_FILE = (ROOT / "docker-compose.yml").read_text()
CONNECTOR = json.loads((COMPOSE / "connector.json").read_text())
DASHBOARD = json.loads((COMPOSE / "grafana/dashboards/stream-merge.json").read_text())
METRICS_PAGE = (ROOT / "docs/metrics.md").read_text()

_SERVICE = re.compile(r"^  (\w+):\n((?:(?:    .*|  #.*)?\n)+)", re.M)
SERVICES = dict(_SERVICE.findall(COMPOSE_FILE.split("\nservices:\n")[1].split("\nvolumes:\n")[0]))
IMAGES = re.findall(r"^    image: (.*)$", COMPOSE_FILE, re.M)


def expressions() -> list[str]:
    """Return every PromQL expression of the dashboard, those of its variables included."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    variables = DASHBOARD["templating"]["list"]
    return panels + [variable["definition"] for variable in variables if variable["type"] == "query"]


def data_sources(part: object) -> set[str]:
    """Return every data source that a part of the dashboard names, at any depth."""
    if isinstance(part, list):
        return set().union(*map(data_sources, part))
    if not isinstance(part, dict):
        return set()
    own = {json.dumps(part["datasource"])} if "datasource" in part else set()
    return own.union(*map(data_sources, part.values()))


def metrics_in(text: str) -> set[str]:
    """Return the names of metrics in a text, a histogram's once."""
    names = set(re.findall(r"\bstream_merge_[a-z_]+\b", text))
    return {re.sub(r"(?<=_batch_seconds)_(bucket|sum|count)$", "", name) for name in names}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of every metric that a pipeline tells, by the name of the metric."""
    progress = Progress("shop")
    metrics = Metrics(progress, "shop")
    result = MergeResult(target="/data/lake/orders", batch_id=3, version=7, phase_ms=dict.fromkeys(PHASES, 5))
    metrics.on_result(result)
    progress.on_result(result)
    progress.set_state(State.RUNNING)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    labels: dict[str, set[str]] = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels[name] = {label for sample in family.samples for label in sample.labels}
    return labels


def test_every_service_is_there():
    assert list(SERVICES) == ["postgres", "kafka", "connect", "connector", "pipeline", "prometheus", "grafana"]


def test_images_have_exact_versions():
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    images = IMAGES + re.findall(r"^FROM (\S+)", dockerfile, re.M)
    assert images == [
        "postgres:15.18",
        "apache/kafka:4.1.2",
        "${DEBEZIUM_CONNECT_IMAGE:-debezium/connect:3.0.0.Final}",
        "${DEBEZIUM_CONNECT_IMAGE:-debezium/connect:3.0.0.Final}",
        "prom/prometheus:v3.5.0",
        "grafana/grafana:12.2.0",
        "python:3.12.11-slim-bookworm",
    ]


@pytest.mark.parametrize("service", [name for name in SERVICES if name != "connector"])
def test_every_service_has_a_health_check(service):
    assert "    healthcheck:\n      test:" in SERVICES[service]


def test_the_service_that_ends_is_waited_for():
    assert "healthcheck:\n      disable: true" in SERVICES["connector"]
    assert "connector: {condition: service_completed_successfully}" in SERVICES["pipeline"]


def test_ports_are_open_on_loopback_only():
    ports = re.findall(r'^    ports: \["(.*)"\]$', COMPOSE_FILE, re.M)
    assert [port.split(":") for port in ports] == [
        ["127.0.0.1", "15432", "5432"],
        ["127.0.0.1", "19092", "19092"],
        ["127.0.0.1", "18083", "8083"],
        ["127.0.0.1", "19108", "9108"],
        ["127.0.0.1", "19090", "9090"],
        ["127.0.0.1", "13000", "3000"],
    ]
    assert COMPOSE_FILE.count("ports:") == len(ports)


def test_files_that_are_mounted_or_built_from_are_there():
    mounted = re.findall(r"- (\./\S+?):/", COMPOSE_FILE)
    built = re.findall(r"dockerfile: (\S+)", COMPOSE_FILE)
    copied = [
        name
        for names in re.findall(r"^COPY (.*) \S+$", (COMPOSE / "Dockerfile").read_text(), re.M)
        for name in names.split()
    ]
    assert len(mounted) == 7
    assert [name for name in [*mounted, *built, *copied] if not (ROOT / name).exists()] == []
    kept = {line.removeprefix("!") for line in (COMPOSE / "Dockerfile.dockerignore").read_text().split("\n")}
    assert {name.split("/")[0] for name in copied} <= kept


@pytest.fixture
def docker_compose(tmp_path: Path) -> list[str]:
    """Return the command that reads the file: `docker compose`, or its predecessor, which does not know the file's
    name."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
        if done.returncode:
            continue
        file = ROOT / "docker-compose.yml"
        if done.stdout.startswith("1."):
            file = tmp_path / "docker-compose.yml"
            file.write_text(re.sub(r"^name: .*\n", "", COMPOSE_FILE, flags=re.M))
        return [*command, "--project-directory", str(ROOT), "--file", str(file)]
    pytest.skip("there is no docker client with the compose plugin, and no docker-compose")


def test_docker_compose_takes_the_file(docker_compose: list[str]):
    checked = subprocess.run([*docker_compose, "config", "--quiet"], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    listed = subprocess.run([*docker_compose, "config", "--services"], capture_output=True, text=True, check=True)
    assert sorted(listed.stdout.split()) == sorted(SERVICES)


def test_the_pipeline_file_loads():
    loaded = load_pipeline(COMPOSE / "pipeline.toml", {"KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"})
    pipeline = loaded.pipeline
    assert (pipeline.pipeline.name, pipeline.pipeline.checkpoint) == ("shop", "/data/checkpoints/shop")
    assert pipeline.source.bootstrap_servers == "kafka:9092"
    assert [(table.source, table.target, table.keys) for table in pipeline.tables] == [
        ("shop.public.customers", "/data/lake/customers", ["id"]),
        ("shop.public.orders", "/data/lake/orders", ["order_id"]),
        ("shop.public.order_items", "/data/lake/order_items", ["order_id", "line_no"]),
    ]
    build_sink(pipeline, None)


def test_the_pipeline_file_has_defaults_for_a_run_outside_the_containers(tmp_path):
    loaded = load_pipeline(COMPOSE / "pipeline.toml", {"DATA_FOLDER": str(tmp_path)})
    assert loaded.pipeline.source.bootstrap_servers == "127.0.0.1:19092"
    assert loaded.pipeline.pipeline.checkpoint == f"{tmp_path}/checkpoints/shop"


def test_the_connector_writes_the_topics_that_the_pipeline_reads():
    pipeline = load_pipeline(COMPOSE / "pipeline.toml", {}).pipeline
    tables = CONNECTOR["table.include.list"].split(",")
    assert [f"{CONNECTOR['topic.prefix']}.{table}" for table in tables] == pipeline.source.topics
    waited_for = re.search(r"^for topic in (.*); do$", (COMPOSE / "register-connector.sh").read_text(), re.M)
    assert waited_for is not None
    assert waited_for[1].split() == pipeline.source.topics


def test_the_keys_are_those_of_the_database():
    pipeline = load_pipeline(COMPOSE / "pipeline.toml", {}).pipeline
    sql = (COMPOSE / "shop.sql").read_text()
    keys = {}
    for name, columns in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\);", sql, re.S):
        together = re.search(r"^    PRIMARY KEY \((.*)\)", columns, re.M)
        keys[f"shop.public.{name}"] = (
            together[1].split(", ") if together else re.findall(r"(\w+) \w+ PRIMARY KEY", columns)
        )
    assert keys == {table.source: table.keys for table in pipeline.tables}


def test_the_connector_reaches_the_database_of_the_compose_file():
    variables = dict(re.findall(r"^      (POSTGRES_\w+): (\S+)$", SERVICES["postgres"], re.M))
    assert CONNECTOR["database.hostname"] == "postgres"
    assert CONNECTOR["database.port"] == "5432"
    assert {
        "POSTGRES_DB": CONNECTOR["database.dbname"],
        "POSTGRES_USER": CONNECTOR["database.user"],
        "POSTGRES_PASSWORD": CONNECTOR["database.password"],
    } == variables


def test_the_messages_have_the_schema_part_that_tells_the_columns():
    assert CONNECTOR["value.converter.schemas.enable"] == "true"
    pipeline = load_pipeline(COMPOSE / "pipeline.toml", {}).pipeline
    assert [table.columns for table in pipeline.tables] == [None, None, None]


def test_prometheus_asks_the_pipeline():
    metrics = load_pipeline(COMPOSE / "pipeline.toml", {}).pipeline.metrics
    assert metrics.prometheus_address == "0.0.0.0"
    assert f'targets: ["pipeline:{metrics.prometheus_port}"]' in (COMPOSE / "prometheus.yml").read_text()
    assert f"http://127.0.0.1:{metrics.prometheus_port}/metrics" in SERVICES["pipeline"]


def test_the_health_check_of_the_pipeline_looks_for_what_it_tells():
    progress = Progress("shop")
    metrics = Metrics(progress, load_pipeline(COMPOSE / "pipeline.toml", {}).pipeline.pipeline.name)
    wanted = re.search(r"b'(.*)' not in metrics", SERVICES["pipeline"])
    assert wanted is not None
    assert wanted[1] not in generate_latest(metrics.registry).decode()
    progress.set_state(State.RUNNING)
    assert wanted[1] in generate_latest(metrics.registry).decode()


def test_the_dashboard_shows_every_metric_and_no_other(exported):
    assert metrics_in(" ".join(expressions())) == set(exported)


def test_the_dashboard_uses_labels_that_the_metrics_have(exported):
    wrong = []
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            used = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            used |= set(re.findall(r"\bby \((\w+)\)", target["expr"])) - {"le"}
            used |= set(re.findall(r'(\w+)=~?"\$', target["expr"]))
            for name in metrics_in(target["expr"]):
                # Nothing has been read from a topic here, so that no sample shows its labels.
                labels = exported[name] or {"pipeline", "topic", "table"}
                wrong += [(panel["title"], name, label) for label in used - labels]
    assert wrong == []


def test_panels_do_not_overlap_and_have_ids_of_their_own():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells


def test_everything_asks_the_source_that_is_chosen_in_the_dashboard():
    """In another Grafana the source has another uid."""
    assert data_sources(DASHBOARD) == {'{"type": "prometheus", "uid": "${datasource}"}'}
    chosen = DASHBOARD["templating"]["list"][0]
    assert (chosen["name"], chosen["type"], chosen["query"]) == ("datasource", "datasource", "prometheus")
    asking = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    assert all("datasource" in target for target in asking)
    assert len(asking) > 20


def test_the_provisioned_source_is_the_only_choice_in_the_containers():
    provisioned = (COMPOSE / "grafana/provisioning/datasources/prometheus.yml").read_text()
    assert re.findall(r"^    (?:type|url|isDefault): (.*)$", provisioned, re.M) == [
        "prometheus",
        "http://prometheus:9090",
        "true",
    ]
    assert provisioned.count("- name: ") == 1


def test_grafana_finds_the_dashboard():
    provider = (COMPOSE / "grafana/provisioning/dashboards/stream-merge.yml").read_text()
    [folder] = re.findall(r"^      path: (.*)$", provider, re.M)
    assert f"- ./compose/grafana/dashboards:{folder}:ro" in SERVICES["grafana"]
    assert f"GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH: {folder}/stream-merge.json" in SERVICES["grafana"]


def test_every_json_file_can_be_read():
    files = sorted(COMPOSE.rglob("*.json"))
    assert [file.name for file in files] == ["connector.json", "stream-merge.json"]
    for file in files:
        assert isinstance(json.loads(file.read_text()), dict)


def test_the_shell_script_is_one():
    shell = shutil.which("sh")
    assert shell is not None
    subprocess.run([shell, "-n", str(COMPOSE / "register-connector.sh")], check=True)


def test_the_page_of_metrics_has_every_name(exported):
    rows = re.findall(r"^\| (.*) \|$", METRICS_PAGE, re.M)
    assert metrics_in(" ".join(rows)) == set(exported)
    documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert {name for name in COUNTERS if name not in documented} == set()
    assert {delta_name(name) for name in COUNTERS if delta_name(name) not in documented} == set()
    fields = set(MergeResult.__dataclass_fields__)
    assert {name for name in fields if name not in documented} == set()


def test_the_page_of_metrics_has_no_name_that_is_gone(exported):
    rows = re.findall(r"^\| (.*) \|$", METRICS_PAGE, re.M)
    fields = {name for row in rows for name in re.findall(r"`(num_\w+|\w+_ms)`", row)}
    assert fields - set(MergeResult.__dataclass_fields__) == set()
    in_delta = {name for row in rows for name in re.findall(r"`(num[A-Z]\w+|\w+Ms)`", row)}
    assert in_delta - {delta_name(name) for name in COUNTERS} == set()


def test_labels_are_documented(exported):
    for name, labels in exported.items():
        row = next(row for row in METRICS_PAGE.split("\n") if re.search(rf"`{name}[`{{]", row))
        named = set(re.findall(r"\{(.*?)\}", row)[0].split(", ")) if f"{name}{{" in row else set()
        if labels:
            assert {label.split("=")[0] for label in named} == labels - {"pipeline", "le"}, name
