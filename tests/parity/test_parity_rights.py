"""What users may do and what they are told: the same requests to our broker and to a running Apache Kafka."""

import os

import pytest

from tests.parity.rights_parity import DELIBERATE, ask_both, told, unexplained, unlike_kept
from tests.peers.kafka_jars import lacking


@pytest.mark.skipif(
    "FLUVIAL_TEST_KAFKA" not in os.environ or lacking() is not None,
    reason=lacking() or "starts a Kafka, which takes ten seconds and a gigabyte: FLUVIAL_TEST_KAFKA=1",
)
def test_every_api_and_version_answers_as_kafka_does_whatever_a_user_may() -> None:
    outcomes = ask_both()
    assert len(outcomes) > 4000
    assert list(told(unexplained(outcomes))) == []
    different = {(each.question.case.api, each.question.is_allowed) for each in outcomes if not each.is_equal}
    assert different == set(DELIBERATE), "what is told as on purpose is no difference any more"


def test_what_is_refused_is_answered_as_kafka_did() -> None:
    assert list(unlike_kept()) == []
