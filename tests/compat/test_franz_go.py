"""
franz-go's own integration tests, each under its own name.

They run in one go, many of them at the same time, as their authors run them. In `make test` those that wait for
minutes of the clock are left out and the chains are short.
"""

import os
from collections.abc import Iterator

import franz_go
import pytest
from conftest import as_many_as_asked
from secured import SECURE, Security

LACK = franz_go.lacking()
if LACK is None and not franz_go.program().exists() and os.environ.get("FLUVIAL_COMPAT") != "all":
    LACK = "franz-go's tests are not built here: python -m tests.compat.run --prepare"
ALL = os.environ.get("FLUVIAL_COMPAT") == "all"

# These wait for timeouts of the client's own.
_SLOW = "TestIssue523|TestIssue434|TestIssue337|TestPauseIssue|TestTxnEtl|TestGroupETL|TestIssue810|Share"


def _names() -> list[str]:
    if LACK is not None:
        return ["every test"]
    left_out = [] if ALL else franz_go.names(pattern=_SLOW)
    return [name for name in franz_go.names() if name not in left_out]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The outcome of every test and sub-test by its name, at brokers with Kafka's timeouts."""
    security = Security(tmp_path_factory.mktemp("security"), closed=SECURE)
    running = as_many_as_asked(tmp_path_factory.mktemp("stock"), security=security)
    running.start()
    servers = running.bootstrap_servers
    access = security.access(servers)
    environ = franz_go.signing_in(access, servers if SECURE else security.servers("SASL_PLAINTEXT"))
    flags = () if ALL else ("-test.skip", _SLOW)
    records = franz_go.RECORDS if ALL else 1000
    folder = tmp_path_factory.mktemp("franz-go")
    timeout = franz_go.SECONDS_MAX
    yield franz_go.run(servers, folder, *flags, environ=environ, records=records, timeout=timeout)
    assert running.stop() == 0
    assert "Traceback" not in (log := running.log.read_text()), log


@pytest.mark.skipif(LACK is not None, reason=LACK or "")
@pytest.mark.timeout(2 * franz_go.SECONDS_MAX)
@pytest.mark.parametrize("name", _names())
def test_kgo(request: pytest.FixtureRequest, name: str) -> None:
    outcomes: dict[str, str] = request.getfixturevalue("outcomes")
    assert name in outcomes, "it came to no end"
    failed = [each for each, outcome in outcomes.items() if outcome == "FAIL" and each.split("/")[0] == name]
    assert not failed
    # A test passes although parts of it were skipped: that is a part that the broker has not been held to.
    skipped = [each for each, outcome in outcomes.items() if outcome == "SKIP" and each.split("/")[0] == name]
    if skipped:
        pytest.skip(f"skipped itself: {', '.join(skipped)}")
