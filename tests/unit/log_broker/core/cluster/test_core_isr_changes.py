"""What a leader may make its ISR, and which error says why not."""

from typing import Any

import pytest
from cluster_driver import ClusterDriver

from log_broker.core.cluster import elections
from log_broker.core.cluster.isr_changes import IsrMember, IsrWish, without_unable
from log_broker.errors import BrokerError, ErrorCode


def three() -> ClusterDriver:
    cluster = ClusterDriver(1, 2, 3, 4)
    cluster.create(assignments={0: (1, 2, 3)})
    cluster.fence(3)
    cluster.start(3)
    return cluster


def test_an_isr_shrinks_and_grows_without_a_new_leader_epoch() -> None:
    cluster = three()
    epochs = [(each.leader_epoch, each.partition_epoch) for each in (cluster.want_isr(1), cluster.want_isr(1, 2, 3))]
    assert epochs == [(0, 2), (0, 3)]


def test_an_isr_that_is_so_already_is_no_change() -> None:
    cluster = three()
    assert cluster.want_isr(1, 2).partition_epoch == cluster.want_isr(1, 2).partition_epoch == 1


WRONG = [
    ("a topic that is not there", {"topic_id": "0" * 32}, ErrorCode.UNKNOWN_TOPIC_ID),
    ("a partition that is not there", {"index_asked": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ("a leader epoch of the past", {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
    ("a leader epoch of the future", {"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
    ("a partition epoch of the past", {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
    ("a partition epoch of the future", {"partition_epoch": 2}, ErrorCode.NOT_CONTROLLER),
    ("another than the leader", {"node_id": 2}, ErrorCode.INVALID_REQUEST),
    ("an ISR of nobody", {"isr": ()}, ErrorCode.INVALID_REQUEST),
    ("an ISR without the leader", {"isr": (IsrMember(2), IsrMember(3))}, ErrorCode.INVALID_REQUEST),
    ("a member twice", {"isr": (IsrMember(1), IsrMember(1))}, ErrorCode.INVALID_REQUEST),
    ("a stranger", {"isr": (IsrMember(1), IsrMember(4))}, ErrorCode.INVALID_REQUEST),
    ("a member of an older process", {"isr": (IsrMember(1), IsrMember(3, 5))}, ErrorCode.INELIGIBLE_REPLICA),
    ("a recovery that never began", {"isr": (IsrMember(1),), "is_recovering": True}, ErrorCode.INVALID_REQUEST),
]


@pytest.mark.parametrize(("fields", "code"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_does_not_fit_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    cluster = three()
    before = cluster.partition()
    fields = dict(fields)
    index = fields.pop("index_asked", 0)
    given = {"leader_epoch": 0, "partition_epoch": 1, "node_id": 1, **fields}
    with pytest.raises(BrokerError) as refused:
        cluster.want_isr(1, 2, 3, asked=index, **given)
    assert refused.value.code is code
    assert cluster.partition() == before


def test_the_broker_epoch_under_which_a_member_was_seen_must_be_its_own() -> None:
    cluster = three()
    epoch = cluster.image.brokers[3].epoch
    members = (IsrMember(1), IsrMember(2), IsrMember(3, epoch))
    assert cluster.want_isr(isr=members).isr == (1, 2, 3)


@pytest.mark.parametrize("how", ["fenced", "leaving", "not unfenced yet"])
def test_who_may_not_lead_may_not_be_in_sync(how: str) -> None:
    cluster = three()
    if how == "leaving":
        cluster.commit(elections.leave(cluster.image, 3))
    else:
        cluster.fence(3)
    if how == "not unfenced yet":
        cluster.register(3, "second")
    with pytest.raises(BrokerError) as refused:
        cluster.want_isr(1, 2, 3)
    assert refused.value.code is ErrorCode.INELIGIBLE_REPLICA


def test_a_replica_whose_disk_takes_no_writes_does_not_come_in_and_keeps_nobody_out() -> None:
    cluster = three()
    cluster.want_isr(1)
    now = cluster.partition()

    def granted(*members: int, unable: set[int]) -> list[int]:
        topic_id = cluster.image.topics["t"].topic_id
        wish = IsrWish(topic_id, 0, now.leader_epoch, now.partition_epoch, tuple(map(IsrMember, members)))
        return [member.node_id for member in without_unable(cluster.image, wish, unable).isr]

    assert granted(1, 2, 3, unable={3}) == [1, 2]
    assert granted(1, 2, unable={1}) == [1, 2], "who is in the ISR is no newcomer"
    with pytest.raises(BrokerError) as refused:
        granted(1, 3, unable={3})
    assert refused.value.code is ErrorCode.INELIGIBLE_REPLICA, "so that the leader waits before it asks again"
