"""The short invalid-request run; tests/e2e/invalid/run.py is the whole one."""

import json

from invalid.run import run

REQUESTS = 5000


def test_wrong_requests_are_refused_beside_streams_that_do_not_change():
    report, problems = run(REQUESTS, seed=1)
    print(json.dumps(report, indent=1))  # shown when the test fails
    assert not problems, problems
    for phase in report["phases"]:
        assert phase["statuses"][400] > 0.5 * phase["requests"], "most are wrong"
        assert phase["streams"] >= 1
