"""Registration, heartbeats and sessions of brokers, as the active controller decides on them."""

import pytest

from log_broker.core.broker_registry import BrokerRegistry, Heartbeat, Registration
from log_broker.core.cluster import ClusterImage
from log_broker.core.cluster_records import BrokerFenced
from log_broker.errors import BrokerError, ErrorCode

SESSION_MS = 100


class Controller:
    """An image that what was decided is replayed into at once, and the registry of whoever leads."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.lead(now_ms=0)

    def lead(self, now_ms: int) -> None:
        self.registry = BrokerRegistry(self.image, now_ms, session_ms=SESSION_MS)

    def register(self, node_id: int, incarnation: str, now_ms: int) -> int:
        record = self.registry.register(self.image, Registration(node_id, "host", 9092, incarnation), now_ms)
        if record is not None:
            self.image.replay(record)
        return self.image.brokers[node_id].epoch

    def beat(self, node_id: int, epoch: int, now_ms: int, *, leaves: bool = False) -> tuple[bool, bool]:
        answer = self.registry.heartbeat(self.image, Heartbeat(node_id, epoch, epoch, leaves), now_ms)
        for record in answer.records:
            self.image.replay(record)
        return answer.is_fenced, answer.should_shut_down

    def expire(self, now_ms: int) -> list[int]:
        records = self.registry.expired(self.image, now_ms)
        for record in records:
            self.image.replay(record)
        return [record.node_id for record in records]


def test_a_broker_that_beats_is_never_fenced() -> None:
    controller = Controller()
    epoch = controller.register(1, "a", 0)
    for now_ms in range(0, 1_000, SESSION_MS - 1):
        assert controller.expire(now_ms) == []
        assert controller.beat(1, epoch, now_ms) == (False, False)


def test_a_silent_broker_is_fenced_when_its_session_ends_and_not_before() -> None:
    controller = Controller()
    controller.register(1, "a", 0)
    controller.register(2, "b", 50)
    assert controller.registry.next_deadline_ms(controller.image) == SESSION_MS
    assert controller.expire(SESSION_MS - 1) == []
    assert controller.expire(SESSION_MS) == [1]
    assert controller.expire(SESSION_MS) == []
    assert controller.registry.next_deadline_ms(controller.image) == 50 + SESSION_MS


def test_a_fence_that_is_not_committed_yet_is_decided_again() -> None:
    controller = Controller()
    controller.register(1, "a", 0)
    for _ in range(2):
        assert controller.registry.expired(controller.image, SESSION_MS) == [BrokerFenced(node_id=1)]


def test_a_broker_that_returns_has_a_new_epoch_and_its_old_words_are_refused() -> None:
    controller = Controller()
    old = controller.register(1, "a", 0)
    controller.expire(SESSION_MS)
    assert controller.beat(1, old, SESSION_MS) == (True, False)
    new = controller.register(1, "a", SESSION_MS)
    assert new > old
    with pytest.raises(BrokerError) as refused:
        controller.beat(1, old, SESSION_MS + 1, leaves=True)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert controller.image.is_alive(1)


def test_a_fenced_broker_that_beats_has_no_session() -> None:
    controller = Controller()
    epoch = controller.register(1, "a", 0)
    controller.expire(SESSION_MS)
    controller.beat(1, epoch, SESSION_MS + 50)
    assert controller.register(1, "another process", SESSION_MS + 60) > epoch


def test_two_processes_do_not_share_an_id() -> None:
    controller = Controller()
    epoch = controller.register(1, "a", 0)
    with pytest.raises(BrokerError) as refused:
        controller.register(1, "b", SESSION_MS - 1)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert controller.register(1, "b", SESSION_MS) > epoch


def test_a_registration_that_is_repeated_is_the_same_one() -> None:
    controller = Controller()
    assert controller.register(1, "a", 0) == controller.register(1, "a", 50)
    assert controller.expire(SESSION_MS) == []


def test_a_broker_that_leaves_is_fenced_at_once() -> None:
    controller = Controller()
    epoch = controller.register(1, "a", 0)
    assert controller.beat(1, epoch, 1, leaves=True) == (True, True)
    assert not controller.image.is_alive(1)
    assert controller.register(1, "b", 2) > epoch


def test_a_new_controller_gives_everyone_a_whole_session() -> None:
    controller = Controller()
    epoch = controller.register(1, "a", 0)
    controller.lead(now_ms=1_000)
    assert controller.expire(1_000 + SESSION_MS - 1) == []
    assert controller.beat(1, epoch, 1_000 + SESSION_MS - 1) == (False, False)
    assert controller.expire(1_000 + 2 * SESSION_MS - 2) == []
    assert controller.expire(1_000 + 2 * SESSION_MS - 1) == [1]


def test_whoever_never_registered_is_told_so() -> None:
    with pytest.raises(BrokerError) as refused:
        Controller().beat(5, 1, 0)
    assert refused.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_is_caught_up_when_it_has_replayed_its_registration() -> None:
    controller = Controller()
    epoch = controller.register(1, "a", 0)
    answers = [
        controller.registry.heartbeat(controller.image, Heartbeat(1, epoch, replayed), 1).is_caught_up
        for replayed in (epoch - 1, epoch)
    ]
    assert answers == [False, True]
