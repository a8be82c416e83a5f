"""The main job on three brokers, one of which is killed while events are published and is back while tables are built."""

import csv_truth
from local_platform import LocalPlatform
from test_kill import FEBRUARY, JANUARY, assert_tables_are_exact


def test_three_brokers_one_killed_and_returned_give_the_same_answers(platform: LocalPlatform) -> None:
    told = platform.run(*platform.demo_words(*JANUARY, "--brokers", "3", "--kill-a-node"))
    assert "killed (SIGKILL)" in told.stderr
    assert "is back" in told.stderr
    assert_tables_are_exact(platform, FEBRUARY)
    topics = platform.run("topics", "describe", "flight_events", "--json", check=True).stdout
    assert csv_truth.event_counts(FEBRUARY)
    assert topics
