"""What the chart renders agrees with the server: settings, time limits, folders, routes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dispatcher.auth.authorization import list_scopes
from dispatcher.settings import read_settings, rows
from dispatcher.version import VERSION
from tests.conftest import PROJECT
from tests.deploy.conftest import (
    CHART,
    DEPLOY,
    EXAMPLES,
    VARIABLES,
    Helm,
    Rendered,
    is_test,
    manifests,
)
from tests.test_docs import openapi_app

SETTINGS = {row.variable: row for row in rows()}
NAMES = ["", *(path.stem for path in EXAMPLES)]
Render = Callable[..., Rendered]


@pytest.mark.parametrize("name", NAMES)
def test_helm_finds_nothing(helm: Helm, name: str) -> None:
    values = ["--values", CHART / "examples" / f"{name}.yaml"] if name else []
    done = helm("lint", "--strict", "--quiet", CHART, *values)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION


@pytest.mark.parametrize("name", NAMES)
def test_the_server_takes_the_settings_of_the_pod(
    render: Render, name: str, tmp_path: Path
) -> None:
    """Each is a setting of the table, or AWS's own, and has a value that the server reads.

    A folder that one names is mounted. Each volume is mounted, and none as a part, of which a
    change would never arrive.
    """
    rendered = render(name)
    pod, server, environment = rendered.pod(), rendered.server(), rendered.environment()
    places = [one["mountPath"] for one in server["volumeMounts"]]
    for value in environment.values():
        if value.startswith("/"):
            assert any(Path(value).is_relative_to(place) for place in places), value
    mounts = [m for one in (server, *pod.get("initContainers", ())) for m in one["volumeMounts"]]
    assert {one["name"] for one in mounts} == {one["name"] for one in pod["volumes"]}
    assert not [one for one in mounts if "subPath" in one]
    assert set(environment) <= VARIABLES
    for variable in ("MODEL_REPOSITORY", "CLIENTS_PATH"):  # folders that only the pod has
        if environment.get(variable, "").startswith("/"):
            environment[variable] = str(tmp_path)
    assert server["ports"][0]["containerPort"] == read_settings(environment).port


def test_a_large_number_is_written_as_the_server_reads_it(render: Render) -> None:
    environment = render("s3").environment()
    assert environment["MODEL_CACHE_MB"] == "1048576"
    assert environment["LOAD_ON_DEMAND"] == "true"
    assert read_settings(environment).model_cache_mb == 2**20
    assert render("keda", "settings.PROBE_INTERVAL=0.5").environment()["PROBE_INTERVAL"] == "0.5"


def test_the_defaults_that_the_chart_knows_are_the_server_s() -> None:
    """Found in the templates, so that a new one is compared too."""
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    known = set(re.findall(r'\(?list [.$] "(\w+)" "(\w*)"\)?', text))
    assert len(known) == len(re.findall(r'include "setting" \(list [.$] "', text))
    assert {name for name, _ in known} >= {"SAGEMAKER_BIND_TO_PORT", "SERVE_STOP_TIMEOUT"}
    for name, default in known:
        assert SETTINGS[name].default == default
    for name in re.findall(r'"([A-Z][A-Z_]+_[A-Z_]+)"', text):
        assert name in VARIABLES


@pytest.mark.parametrize("name", NAMES)
def test_probes_ask_routes_that_need_no_key(render: Render, name: str) -> None:
    server = render(name).server()
    asked = {one: server[one]["httpGet"] for one in ("startupProbe", "livenessProbe")}
    assert {one["path"] for one in asked.values()} == {"/v2/health/live"}
    assert server["readinessProbe"]["httpGet"]["path"] == "/ping"
    routes = openapi_app().url_map.bind("localhost")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        endpoint, _ = routes.match(server[probe]["httpGet"]["path"], "GET")
        assert list_scopes(endpoint, "GET") == ()
        assert server[probe]["httpGet"]["port"] == "http"


def seconds(probe: dict[str, int]) -> int:
    return probe["periodSeconds"] * probe["failureThreshold"]


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_has_the_time_to_start_and_to_stop_that_the_server_takes(
    render: Render, name: str
) -> None:
    rendered = render(name)
    folders = ("MODEL_REPOSITORY", "CLIENTS_PATH")
    environment = rendered.environment().items()
    settings = read_settings({key: text for key, text in environment if key not in folders})
    server, deployment = rendered.server(), rendered.one("Deployment")["spec"]
    loading = 1800 if name == "s3" else 60
    assert seconds(server["startupProbe"]) >= settings.start_timeout + loading
    assert deployment["progressDeadlineSeconds"] > seconds(server["startupProbe"])
    # gunicorn replaces a hanging worker after 15 s, and `serve` a hanging program after some 20.
    assert seconds(server["livenessProbe"]) >= 60
    assert server["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "10"]
    grace = rendered.pod()["terminationGracePeriodSeconds"]
    assert grace == 10 + settings.stop_timeout + 3
    assert grace == {"all": 88}.get(name, 40)


def test_the_grace_period_follows_the_settings(render: Render) -> None:
    rendered = render("", "settings.SERVE_STOP_TIMEOUT=59.5", "drain.delaySeconds=0")
    assert rendered.pod()["terminationGracePeriodSeconds"] == math.ceil(59.5) + 3
    assert rendered.server()["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "0"]


@pytest.mark.parametrize("name", NAMES)
def test_only_what_the_server_writes_to_can_be_written(render: Render, name: str) -> None:
    rendered = render(name)
    pod = rendered.pod()
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    mounts = rendered.server()["volumeMounts"]
    written = {one["mountPath"] for one in mounts if not one.get("readOnly")}
    expected = {"/tmp", "/dev/shm"} | {
        "s3": {"/cache"}, "all": {"/cache"}, "gpu": {"/engines"}
    }.get(name, set())  # fmt: skip
    assert written == expected
    # The server's own folders that are elsewhere by default, and that it writes to.
    environment = rendered.environment()
    if environment.get("MODEL_REPOSITORY", "").startswith("s3://"):
        assert environment["MODEL_CACHE"] == "/cache"


def test_models_come_from_s3(render: Render) -> None:
    rendered = render("s3")
    environment = rendered.environment()
    assert environment["MODEL_REPOSITORY"] == "s3://my-bucket/models,s3://my-bucket/more"
    settings = read_settings(environment)
    assert ",".join(map(str, settings.repositories)) == environment["MODEL_REPOSITORY"]
    # The server fills the folder up to MODEL_CACHE_MB; a pod that exceeds the volume is evicted.
    limit = rendered.volume("cache")["emptyDir"]["sizeLimit"]
    assert int(limit.removesuffix("Mi")) > settings.model_cache_mb
    account = rendered.one("ServiceAccount")["metadata"]["annotations"]
    (role,) = account.values()
    assert role == "arn:aws:iam::123456789012:role/triton-dispatcher"
    assert render("all").server()["envFrom"] == [{"secretRef": {"name": "s3-credentials"}}]


@pytest.mark.parametrize("name", NAMES)
def test_everything_points_at_the_same_pods(render: Render, name: str) -> None:
    """And the Pod of `helm test` is none of them."""
    rendered = render(name)
    labels = rendered.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        rendered.one("Deployment")["spec"]["selector"]["matchLabels"],
        rendered.one("Service")["spec"]["selector"],
        rendered.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(c["labelSelector"]["matchLabels"] for c in rendered.pod()["topologySpreadConstraints"]),
        *(
            one["spec"]["podSelector"]["matchLabels"]
            for one in rendered
            if one["kind"] == "NetworkPolicy"
        ),
    ]
    (test,) = [one for one in rendered if one["kind"] == "Pod"]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= test["metadata"]["labels"].items()
    service = rendered.one("Service")
    for one in rendered:
        if one["kind"] == "ServiceMonitor":
            labels = service["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            assert one["spec"]["endpoints"][0]["path"] == "/metrics"
        if one["kind"] == "HTTPRoute":
            ((backend,),) = (rule["backendRefs"] for rule in one["spec"]["rules"])
            port = service["spec"]["ports"][0]["port"]
            assert backend == {"name": service["metadata"]["name"], "port": port}


def test_an_autoscaler_alone_decides_how_many_pods_there_are(render: Render) -> None:
    assert render().one("Deployment")["spec"]["replicas"] == 2
    for example, kind in (("all", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        rendered = render(example)
        deployment = rendered.one("Deployment")
        assert "replicas" not in deployment["spec"]
        target = rendered.one(kind)["spec"]["scaleTargetRef"]
        assert target["name"] == deployment["metadata"]["name"]
    assert not render().kinds() & {"HorizontalPodAutoscaler", "ScaledObject"}


def test_saturation_scales_as_the_page_says(render: Render) -> None:
    """The rule for prometheus-adapter gives the metric that the autoscaler asks for."""
    (metric,) = render("all").one("HorizontalPodAutoscaler")["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    page = (PROJECT / "docs" / "kubernetes.md").read_text()
    (rules,) = [
        found
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        if (found := (yaml.safe_load(block) or {}).get("rules"))
    ]
    (rule,) = rules["custom"]
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "0.2"}


def test_keda_counts_a_metric_that_there_is(render: Render) -> None:
    """What its query answers, and by which rate, is in observe/test_releases.py."""
    scaled = render("keda").one("ScaledObject")["spec"]
    assert "fallback" not in scaled, "an older KEDA would scale to its replicas"
    (trigger,) = scaled["triggers"]
    (metric,) = re.findall(r"dispatcher_\w+", trigger["metadata"]["query"])
    assert trigger["metadata"]["ignoreNullValues"] == "false", "no series are no load"
    page = (PROJECT / "docs" / "operations.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{metric}` |")]
    assert "`model`" in row
    assert trigger["metadata"]["threshold"] == "12.5"


OWN = ',namespace="default",service="r-triton-dispatcher"'


def test_the_alerts_are_those_of_prometheus_and_know_the_job(render: Render) -> None:
    assert "PrometheusRule" not in render("keda").kinds()
    rules = yaml.safe_load((PROJECT / "deploy" / "observe" / "alerts.yml").read_text())
    job = 'job="triton-dispatcher"'
    text = json.dumps(rules).replace(json.dumps(job)[1:-1], json.dumps(job + OWN)[1:-1])
    assert render("all").one("PrometheusRule")["spec"] == json.loads(text) != rules
    for release in (render("all"), render("all", "nameOverride=other")):
        monitor = release.one("ServiceMonitor")["spec"]
        (endpoint,) = monitor["endpoints"]
        relabeling = {"targetLabel": "job", "replacement": "triton-dispatcher"}
        assert endpoint["relabelings"] == [relabeling]
        assert "jobLabel" not in monitor


def test_a_network_policy_lets_in_what_asks_and_out_what_is_needed(render: Render) -> None:
    policy = render("s3").one("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    http = [{"port": "http", "protocol": "TCP"}]
    (test,) = [one for one in render("s3") if is_test(one)]
    tests = {"podSelector": {"matchLabels": test["metadata"]["labels"]}}
    assert policy["ingress"] == [
        {"from": [{"podSelector": {}}], "ports": http},
        {"from": [tests], "ports": http},
    ]
    out = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
    assert out == [53, 53, 443, 80]
    for named in (
        "settings.MODEL_REPOSITORY=s3://b/m",
        "env[0].name=S3_BUCKET_NAME,env[0].value=b",
    ):
        other = render("", "networkPolicy.enabled=true", named).one("NetworkPolicy")["spec"]
        assert [p["port"] for rule in other["egress"] for p in rule["ports"]] == [53, 53, 443]
    without = render("", "networkPolicy.enabled=true").one("NetworkPolicy")["spec"]
    assert [p["port"] for rule in without["egress"] for p in rule["ports"]] == [53, 53]


@pytest.mark.parametrize(
    ("name", "address", "port"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318", "4318"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://otel.example.com/v1/traces", "443"),
        ("TRITON_URL", "dns:///triton:8001", "8001"),
        ("TRITON_HTTP_URL", "http://triton:8000", "8000"),
        ("AWS_ENDPOINT_URL_S3", "http://minio:9000", "9000"),
        ("AWS_ENDPOINT_URL_S3", "http://minio/", "80"),
        ("AWS_ENDPOINT_URL_S3", "https://s3.example.com/", ""),
    ],
)
@pytest.mark.parametrize("where", ["settings.{}={}", "env[0].name={},env[0].value={}"])
def test_a_network_policy_that_closes_what_a_setting_needs_is_refused(
    helm: Helm, name: str, address: str, port: str, where: str
) -> None:
    values = ["--set", where.format(name, address), "--set", "networkPolicy.enabled=true"]
    done = helm("template", "r", str(CHART), *values)
    assert (done.returncode != 0) == bool(port), done.stderr
    assert (f"{name} is {address}, which networkPolicy" in done.stderr) == bool(port)
    assert f"port: {port}," in done.stderr or not port
    opened = "networkPolicy.egress[0].ports[0].port=4318"
    assert helm("template", "r", str(CHART), *values, "--set", opened).returncode == 0


def test_the_manifest_for_those_without_helm_is_what_helm_renders(helm: Helm) -> None:
    done = helm("template", "triton-dispatcher", CHART, "--skip-tests")
    plain = (DEPLOY / "plain.yaml").read_text()
    assert manifests(plain) == manifests(done.stdout), "helm template --skip-tests makes it again"
