"""The files of deploy/: their form, and that the flags, paths, ports and metrics that they name are those of the server."""

import configparser
import json
import os
import re
import shutil
import subprocess

import dockerfile_parse
import httpx2
import kubernetes_validate
import promql_parser
import pytest
import yaml

from conftest import BINARY, ROOT, free_ports, run_rudder, serving, wait_for
from kv_events import config

DEPLOY = ROOT / "deploy"
KUBERNETES_VERSION = "1.33"
# What a scraper adds to every series.
SCRAPED_LABELS = {"instance", "job", "namespace", "pod"}
# What a slim Debian has; the rest of the binary is in it.
GLIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"}


@pytest.fixture(scope="module")
def series():
    """{metric: {its labels}} of a server with everything on that has metrics, after one request."""
    with serving("--enable-steering", "--capture-memory-mb", "4", "--capture-consumer", "logging",
                 *config(*free_ports(2))) as server:
        client = server.client()
        client.completions.create(model=client.models.list().data[0].id, prompt="A", max_tokens=1)
        found = {}
        for line in httpx2.get(server.url + "/metrics").text.splitlines():
            if not line.startswith("#"):
                name, labels = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? \S+", line).groups()
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
        return found


@pytest.fixture(scope="module")
def rules():
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())["groups"]
    return group["rules"]


def selectors(expression):
    """[(metric, labels)] of the selectors of a PromQL expression; ValueError where it is none."""
    found = []

    def note(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name, {matcher.name for matcher in node.matchers.matchers}))

    promql_parser.walk(promql_parser.parse(expression), note)
    return found


def expect_known(expression, series, recorded=()):
    found = selectors(expression)
    assert found, expression
    for name, labels in found:
        assert name in series or name in recorded, f"{name} of {expression}"
        assert labels <= series.get(name, set()) | SCRAPED_LABELS, f"{labels} of {expression}"
    grouped = {label.strip() for by in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", expression) for label in by.split(",")}
    assert grouped <= set().union(SCRAPED_LABELS, *(series.get(name, set()) for name, _ in found)), expression


def test_a_name_that_is_no_metric_is_found(series):
    expect_known("sum by (model_name) (rate(rudder:engine_steps_total[5m]))", series)
    for wrong in ("rate(rudder:engine_step_total[5m])", 'rudder:kv_blocks{stat="free"}',
                  "sum by (stat) (rudder:kv_blocks)", "1"):
        with pytest.raises(AssertionError):
            expect_known(wrong, series)
    with pytest.raises(ValueError):
        selectors("sum by (model_name (rudder:kv_blocks)")


def test_rules_are_about_metrics_of_the_server(series, rules):
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        assert set(rule) == ({"record", "expr"} if "record" in rule else {"alert", "expr", "for", "labels", "annotations"})
        expect_known(rule["expr"], series, recorded)
        used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule.get("annotations", {}))))
        assert used <= SCRAPED_LABELS.union(*(series.get(name, set()) for name, _ in selectors(rule["expr"])))
        assert rule.get("labels", {}).get("severity", "warning") in ("warning", "critical")


def test_every_alert_has_a_test_where_it_fires_and_one_where_not(rules):
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules.test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


@pytest.mark.slow
def test_promtool_agrees(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:  # of the distribution's package, unpacked and not installed: that would start a service
        subprocess.run(["apt-get", "download", "prometheus"], cwd=tmp_path, check=True, capture_output=True)
        [package] = tmp_path.glob("prometheus_*.deb")
        subprocess.run(["dpkg", "-x", package, tmp_path / "package"], check=True)
        promtool = tmp_path / "package" / "usr" / "bin" / "promtool"
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "rules.test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_shows_metrics_of_the_server(series):
    board = json.loads((DEPLOY / "grafana" / "rudder.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(x, y) for p in panels for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
             for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) == 23  # nothing lies over anything else
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\(([\w:]+), (\w+)\)", variable["query"]).groups()
            assert label in series[metric] | SCRAPED_LABELS
    targets = [target for panel in panels for target in panel.get("targets", [])]
    assert len(targets) > 20
    for target in targets:
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= variables | {"__rate_interval"}
        expression = target["expr"].replace("$__rate_interval", "5m")
        expect_known(expression, series)
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert f"({label})" in expression or label in SCRAPED_LABELS, target


# Metrics that the dashboards in vLLM's repository show, of servers without adapters and transfer of KV.
PANELS = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prompt_tokens_total
    generation_tokens_total request_success_total prefix_cache_queries_total prefix_cache_hits_total cache_config_info
    time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds
    request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
    request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
    request_generation_tokens request_max_num_generation_tokens request_params_max_tokens request_params_n
    request_prefill_kv_computed_tokens iteration_tokens_total num_requests_waiting_by_reason prompt_tokens_by_source_total
    prompt_tokens_cached_total""".split()


def test_vllms_panels_have_series():
    with serving("--metrics-prefix", "vllm") as server:
        body = {"prompt": "Once upon a time", "max_tokens": 5, "n": 2, "temperature": 1, "ignore_eos": True}
        for _ in range(2):
            assert httpx2.post(server.url + "/v1/completions", json=body).status_code == 200
        # What has to be sampled behind these is nobody's output.
        echo = httpx2.post(server.url + "/v1/completions", json={"prompt": "Once", "max_tokens": 0, "echo": True})
        assert echo.status_code == 200 and echo.json()["usage"]["completion_tokens"] == 0
        assert httpx2.post(server.url + "/v1/embeddings", json={"input": ["Once", "upon a"]}).status_code == 200
        wait_for(lambda: server.metric("vllm:request_success_total") == 7, "the requests are counted")
        values = server.metrics()
    for name in PANELS:
        found = {key: value for key, value in values.items() if re.match(rf"vllm:{name}(_bucket|_sum|_count)?{{", key)}
        assert found, name
        counts = [value for key, value in found.items() if key.startswith(f"vllm:{name}_count")]
        assert all(counts) and ("seconds" not in name or counts), name
    summed = {name: sum(value for key, value in values.items() if key.startswith(f"vllm:{name}{{")) for name in (
        "generation_tokens_total", "request_generation_tokens_sum", "request_max_num_generation_tokens_sum",
        "request_max_num_generation_tokens_count")}
    assert list(summed.values()) == [20, 20, 10, 5]
    by_source = sum(value for key, value in values.items() if key.startswith("vllm:prompt_tokens_by_source_total{"))
    assert by_source == sum(value for key, value in values.items() if key.startswith("vllm:prompt_tokens_total{")) > 0


@pytest.fixture(scope="module")
def manifests():
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "rudder.yaml").read_text()))
    return {manifest["kind"]: manifest for manifest in found}


def test_manifests_are_what_kubernetes_takes(manifests):
    assert set(manifests) == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    for manifest in manifests.values():
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_the_deployment_fits_the_server(manifests, tmp_path):
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    arguments = container["args"]
    port, drain = (arguments[arguments.index(flag) + 1] for flag in ("--port", "--shutdown-timeout"))
    assert [int(port)] == [p["containerPort"] for p in container["ports"]]
    grace = pod["terminationGracePeriodSeconds"]
    assert grace >= container["lifecycle"]["preStop"]["sleep"]["seconds"] + float(drain) + 10
    # Its own arguments, with the demo model and another port.
    assert arguments[0] == "serve" and arguments[1].startswith(container["volumeMounts"][0]["mountPath"] + "/")
    flags = arguments[2:]
    flags[flags.index("--port") + 1] = "0"
    with serving(*flags) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert httpx2.get(url + container[probe]["httpGet"]["path"]).status_code == 200, probe
        annotations = manifests["Deployment"]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == port
        assert httpx2.get(url + annotations["prometheus.io/path"]).status_code == 200


def test_selectors_meet_the_pods(manifests):
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    pool = yaml.safe_load((DEPLOY / "kubernetes" / "inference-pool.yaml").read_text())
    values = yaml.safe_load((DEPLOY / "kubernetes" / "llm-d-values.yaml").read_text())["router"]
    wanted = [manifests["Deployment"]["spec"]["selector"]["matchLabels"], manifests["Service"]["spec"]["selector"],
              manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
              pool["spec"]["selector"]["matchLabels"], values["modelServers"]["matchLabels"]]
    for selector in wanted:
        assert selector and selector.items() <= labels.items()
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    ports = [{"number": p["containerPort"]} for p in container["ports"]]
    assert pool["spec"]["targetPorts"] == values["modelServers"]["targetPorts"] == ports
    target = manifests["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "apps/v1", "kind": "Deployment", "name": manifests["Deployment"]["metadata"]["name"]}


def test_the_picker_reads_metrics_of_the_server(manifests, series):
    epp = yaml.safe_load((DEPLOY / "kubernetes" / "llm-d-values.yaml").read_text())["router"]["epp"]
    picker = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in picker["plugins"]}
    for profile in picker["schedulingProfiles"]:
        assert {plugin["pluginRef"] for plugin in profile["plugins"]} <= set(plugins)
    [engine] = plugins["core-metrics-extractor"]["engineConfigs"]
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert engine.pop("name") == plugins["core-metrics-extractor"]["defaultEngine"] == labels["llm-d.ai/engine-type"]
    assert set(engine.values()) <= set(series)
    assert {"block_size", "num_gpu_blocks"} <= series[engine["cacheInfoSpec"]]


def test_the_autoscaler_finds_its_metric(manifests, series):
    [rule] = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter-values.yaml").read_text())["rules"]["custom"]
    pattern = re.search(r'__name__=~"([^"]+)"', rule["seriesQuery"])[1]
    names = [name for name in series if re.fullmatch(pattern, name)]
    given = [re.sub(rule["name"]["matches"], rule["name"]["as"].replace("${1}", r"\1"), name) for name in names]
    for metric in manifests["HorizontalPodAutoscaler"]["spec"]["metrics"]:
        assert metric["pods"]["metric"]["name"] in given
    for name in names:
        query = rule["metricsQuery"].replace("<<.Series>>", name).replace("<<.LabelMatchers>>", 'pod="a"')
        expect_known(query.replace("<<.GroupBy>>", "pod"), series)


def needed_libraries():
    listed = subprocess.run(["readelf", "-d", str(BINARY)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", listed))


def test_the_container_starts_the_server(tmp_path):
    path = tmp_path / "Dockerfile"
    shutil.copy(DEPLOY / "container" / "Containerfile", path)
    steps = {step["instruction"]: step["value"] for step in dockerfile_parse.DockerfileParser(str(path)).structure}
    assert steps["FROM"].startswith("debian:12")
    source, target = steps["COPY"].split()
    assert (ROOT / source) == ROOT / "build" / "release" / "apps" / "rudder"
    assert json.loads(steps["ENTRYPOINT"]) == [target] and steps["USER"] != "0:0"
    if "RUDDER_BINARY" not in os.environ:  # an instrumented binary is for no container
        assert needed_libraries() <= GLIBC
    command, *flags = json.loads(steps["CMD"])
    assert command == "serve"
    with serving(*flags) as server:
        assert httpx2.get(server.url.replace("0.0.0.0", "127.0.0.1") + "/readyz").status_code == 200
    port = re.search(r"--port <int>.*\[(\d+)\]", run_rudder("serve", "--help").stdout)[1]
    assert steps["EXPOSE"] == port


def read_unit():
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str
    unit.read(DEPLOY / "systemd" / "rudder.service")
    return unit


def test_the_unit_starts_the_server_and_waits_for_its_drain():
    service = read_unit()["Service"]
    _, command, *flags = service["ExecStart"].split()
    assert command == "serve"
    with serving(*flags) as server:
        assert httpx2.get(server.url + "/readyz").status_code == 200
        drain = float(httpx2.get(server.url + "/server_info").json()["settings"]["shutdown-timeout"])
    assert float(service["TimeoutStopSec"]) >= drain + 10


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path):
    text = (DEPLOY / "systemd" / "rudder.service").read_text()
    unit = tmp_path / "rudder.service"
    unit.write_text(text.replace("/usr/local/bin/rudder", str(BINARY.resolve())))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and str(unit) not in done.stderr, done.stderr
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", str(unit)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
