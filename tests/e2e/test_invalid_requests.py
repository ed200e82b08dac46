"""The short invalid-request run; tests/e2e/invalid/run.py is the whole one."""

import json
import re

from conftest import ROOT, is_instrumented
from invalid.memory import CACHES, memory_report
from invalid.run import run
from invalid.seeds import FEATURES, GATES, OPS, SEEDS, STEERING

REQUESTS = 5000


def test_wrong_requests_are_refused_beside_streams_that_do_not_change():
    report, problems = run(REQUESTS, seed=1)
    print(json.dumps(report, indent=1))  # shown when the test fails
    assert not problems, problems
    for phase in report["phases"]:
        assert phase["statuses"][400] > 0.5 * phase["requests"], "most are wrong"
        assert phase["streams"] >= 1


def first_cells(page, header):
    """Names in the first column of every table of the page whose first row begins so."""
    names, inside = set(), False
    for line in (ROOT / page).read_text().splitlines():
        inside = line.startswith(header) or inside and line.startswith("|")
        if inside:
            names.update(re.findall(r"`([a-z_]+)", line.split("|")[1]))
    return names


# Right for a mixture of experts alone, which the model of these bodies is not: test_experts.py has them.
OF_MIXTURES = {"return_routed_experts", "routed_experts_prompt_start", "experts"}


def test_the_right_bodies_have_every_field_and_op_of_the_manual():
    drawn = {name for path in ("/v1/completions", "/v1/chat/completions") for body in SEEDS[path] for name in body}
    fields = first_cells("docs/api.md", "| field |")
    assert len(fields) > 60 and not fields - drawn - OF_MIXTURES
    ops = first_cells("docs/steering.md", "| op |")
    features = [each["steering"] for each in FEATURES if "steering" in each]
    assert len(ops) == 14 and not ops - {each.get("op") for each in OPS + GATES + STEERING + features} - OF_MIXTURES


def test_memory_that_a_cache_took_is_judged_too():
    def told(mib, **caches):
        names = dict.fromkeys(CACHES.values(), 0) | caches
        return {"process_resident_memory_bytes": mib << 20, **names}

    for after, kept, is_wrong in ((129, 0, False), (131, 0, True), (150, 40, True)):
        parts = {"compiled forms": kept << 20}
        report, problem = memory_report(told(60), told(100), told(after), parts)
        assert (problem is not None) == (is_wrong and not is_instrumented()), (after, problem)
        assert report["grown otherwise"] == after - 100 - kept and report["fresh"] == 60
