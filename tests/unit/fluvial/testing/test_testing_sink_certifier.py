"""Sinks that are known to be of each class get the verdict of that class, with what was lost or doubled."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fluvial.testing import certify
from fluvial.testing.sink_certifier import ATTACKS, CertifyError, Class, Evidence

SINKS = Path(__file__).with_name("sinks.py")


def evidence(sink: str, **options: bool) -> tuple[Class, dict[str, Evidence]]:
    found = certify(f"{SINKS}:{sink}", **options)
    print(found)
    return found.verdict, {each.attack: each for each in found.evidence}


def test_a_file_that_is_appended_to_doubles_what_comes_again() -> None:
    verdict, found = evidence("AppendedFile")
    assert verdict is Class.AT_LEAST_ONCE
    assert found.keys() == ATTACKS.keys()
    doubled = {name for name, each in found.items() if each.doubled}
    assert doubled >= {"killed", "repeated", "cut otherwise", "late", "two at once"}
    assert not any(each.lost for each in found.values())


def test_who_commits_before_he_writes_loses_and_never_doubles() -> None:
    verdict, found = evidence("AppendedFile", commit_first=True)
    assert verdict is Class.AT_MOST_ONCE
    assert found.keys() == {"undisturbed", "killed"}
    assert found["killed"].lost
    assert not found["killed"].doubled


def test_rows_that_are_written_over_are_there_once_and_are_seen_too_early() -> None:
    verdict, found = evidence("Upserts")
    assert verdict is Class.EFFECTIVELY_ONCE
    assert "beyond the committed position" in str(found["killed"].torn)


def test_rows_and_offsets_in_one_transaction_are_exact() -> None:
    verdict, found = evidence("OffsetsInTheTransaction")
    assert verdict is Class.EXACTLY_ONCE, found


def test_who_knows_batches_by_their_number_loses_what_comes_in_another_cut() -> None:
    verdict, found = evidence("OnceABatchNumber")
    assert verdict in {Class.NOTHING, Class.AT_MOST_ONCE}
    assert found["cut otherwise"].lost
    assert not found["repeated"].lost
    assert not found["repeated"].doubled


def test_what_does_not_work_at_all_gets_no_verdict() -> None:
    with pytest.raises(CertifyError, match=r"does not even hold .* 160 rows lost"):
        certify(f"{SINKS}:Broken")
    with pytest.raises(CertifyError, match=r"there is no sink .*:Nobody"):
        certify(f"{SINKS}:Nobody")


def test_the_command_says_so_by_its_status() -> None:
    fluvial = Path(sys.executable).parent / "fluvial"
    words = ["--kills", "2", "--format", "json"]
    for sink, status, verdict in (("OffsetsInTheTransaction", 0, "exactly once"), ("AppendedFile", 1, "at least once")):
        done = subprocess.run(
            [fluvial, "certify", f"{SINKS}:{sink}", *words], capture_output=True, text=True, check=False
        )
        assert (done.returncode, json.loads(done.stdout)["verdict"]) == (status, verdict), done.stderr
