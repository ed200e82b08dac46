"""Variables that a platform sets for a service or a container that is called like the server: they are no flags of its own."""

import os
import re

import pytest
from conftest import run_rudder, serving

HELP = {command: run_rudder(*command.split(), "--help").stdout
        for command in ("serve", "generate", "chat", "info", "vectors train", "features rank", "bench serve")}
# Kubernetes' links of a Service (with three kinds of ports), and Docker's of a container.
LINKS = {
    "_PORT": "tcp://10.96.31.7:80", "_PORT_80_TCP": "tcp://10.96.31.7:80", "_PORT_80_TCP_PROTO": "tcp",
    "_PORT_80_TCP_PORT": "80", "_PORT_80_TCP_ADDR": "10.96.31.7", "_PORT_53_UDP": "udp://10.96.31.7:53",
    "_PORT_99_SCTP": "sctp://10.96.31.7:99", "_SERVICE_HOST": "10.96.31.7", "_SERVICE_PORT": "80",
    "_SERVICE_PORT_HTTP": "80", "_SERVICE_PORT_METRICS": "9090", "_ENV_PATH": "/usr/bin", "_ENV_PORT": "80",
}
OTHERS = {  # systemd, Slurm, Nomad, cloud platforms
    "NOTIFY_SOCKET": "/run/notify", "LISTEN_FDS": "0", "INVOCATION_ID": "0" * 32, "JOURNAL_STREAM": "8:1", "PORT": "tcp://x",
    "HOST": "tcp://x", "SLURM_JOB_NAME": "rudder", "SLURM_NTASKS": "1", "NOMAD_PORT_http": "80", "HOSTNAME": "rudder-0",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443", "KUBERNETES_SERVICE_HOST": "10.96.0.1",
}


def flags_of(text):
    return re.findall(r"^  --(?:\[no-\])?([a-z][a-z0-9-]*)", text, re.MULTILINE)


def services_like(flags):
    """Names of services, as they stand in variables, that any flag's own variable begins with."""
    found = {"RUDDER"}
    for flag in flags:
        words = ["RUDDER", *flag.upper().split("-")]
        found |= {"_".join(words[:count]) for count in range(1, len(words) + 1)}
    return sorted(found)


def platform_variables(flags):
    variables = dict(OTHERS)
    for service in services_like(flags):
        variables |= {service + suffix: value for suffix, value in LINKS.items()}
        variables[service + "_NAME"] = "/consumer/" + service.lower().replace("_", "-")
    return variables


@pytest.fixture
def platform(monkeypatch):
    def set_all(command, **own):
        for name, value in (platform_variables(flags_of(HELP[command])) | own).items():
            monkeypatch.setenv(name, value)
    return set_all


def test_a_server_has_the_settings_that_it_has_without_them(platform):
    with serving() as server:
        plain = server.settings()
    platform("serve")
    with serving() as server:
        assert server.settings() == plain


def test_without_the_flag_what_a_platform_set_is_passed_over_with_a_warning(platform):
    platform("serve")
    done = run_rudder("serve", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "RUDDER_PORT is passed over" in done.stderr and "10.96" not in done.stderr


@pytest.mark.parametrize("command", ["info", "generate --prompt Hello --max-tokens 1 --temperature 0"])
def test_commands_run_with_them(platform, command):
    platform(command.split()[0])
    done = run_rudder(*command.split())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", ["no number", "70000", "tcp://10.96.31.7:80", ""])
def test_what_a_flag_overrides_is_not_judged(monkeypatch, value):
    monkeypatch.setenv("RUDDER_PORT", value)
    with serving() as server:  # with --port
        assert server.settings()["port"] == "0"


@pytest.mark.parametrize("level, ours", [("WARNING", "warn"), ("critical", "error"), ("TRACE", "debug"), ("Info", "info")])
def test_levels_of_logs_have_the_words_of_other_systems(monkeypatch, level, ours):
    monkeypatch.setenv("RUDDER_LOG_LEVEL", level)
    with serving() as server:
        assert server.settings()["log-level"] == ours


def test_what_nothing_overrides_is_judged_and_the_variable_is_named(monkeypatch):
    monkeypatch.setenv("RUDDER_MAX_NUM_SEQS", "many")
    done = run_rudder("serve", "--dry-run")
    assert done.returncode == 2 and "RUDDER_MAX_NUM_SEQS" in done.stderr


def test_flags_take_the_place_of_lists_of_the_environment(monkeypatch):
    monkeypatch.setenv("RUDDER_SERVED_MODEL_NAME", "of-the-environment")
    with serving("--served-model-name", "first", "second", "--api-key", "key-one", "key-two") as server:
        for key in ("key-one", "key-two"):
            assert [each.id for each in server.client(api_key=key).models.list()] == ["first", "second"]
    assert os.environ["RUDDER_SERVED_MODEL_NAME"] == "of-the-environment"


def test_the_model_may_stand_behind_a_flag_with_several_values(tmp_path):
    from conftest import DEMO
    done = run_rudder("serve", "--dry-run", "--api-key", "one", "two", str(DEMO))
    assert done.returncode == 0, done.stderr
    done = run_rudder("serve", "--dry-run", "--api-key", "one", str(tmp_path / "nothing"))
    assert done.returncode == 0, done.stderr  # a second key


def test_white_space_around_a_value_is_no_part_of_it(monkeypatch):
    monkeypatch.setenv("RUDDER_API_KEY", "a-key\n")  # as secrets that were made from files have it
    with serving() as server:
        assert server.client(api_key="a-key").models.list().data
