"""
What becomes of one partition when its ISR, its replicas or who may lead it change: one record, or none.

Every change of a partition is made here, whatever asked for it, so these rules hold everywhere (KIP-455, KIP-966):

- A move of replicas is complete as soon as all that shall be there are in the ISR; those that shall go leave with it.
- Who leaves the ISR while that is below its minimum is still eligible (ELR): from then on the high watermark stands
  still, so he has all below it. When the ISR has its minimum again, the ELR is empty.
- Of those that may lead, the choice is by the racks that the topic prefers, then by the order of the replicas.
- The leader is in the ISR. If that is empty, one of the ELR leads and is the ISR from then on. Nobody else leads but
  in an unclean election: whoever is chosen then is the ISR alone, and `recovering`.
- A new leader begins a new leader epoch, and so does the same one when replicas were taken away.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from log_broker.core.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from log_broker.core.cluster.leader_choice import by_choice, rank
from log_broker.core.cluster.records import PartitionChanged


class Election(Enum):
    """Whom to prefer, and whether the partition is to have a leader at any price."""

    ONLINE = "the leader stays if it may"
    PREFERRED = "the first choice leads if it may, or one in a better rack than the leader's"
    UNCLEAN = "as ONLINE, and if nobody may, then any replica that is up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a partition shall be; what is None stays. `lost` are replicas that may have lost what was committed."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    recovering: bool | None = None
    lost: Collection[int] = field(default=())
    election: Election = Election.ONLINE


class Elected(NamedTuple):
    """Who leads; NO_LEADER when nobody may."""

    leader: int
    is_unclean: bool = False


def change_partition(
    image: ClusterImage, topic: TopicImage, index: int, wish: Wish, may_lead: Callable[[int], bool] | None = None
) -> PartitionChanged | None:
    """
    Decide what a partition becomes; None: it stays.

    `may_lead` says of a broker whether it is there to lead, where the image does not tell it yet.
    """
    now = topic.partitions[index]
    least = topic.config.min_insync_replicas
    then = _moved(_wished(now, wish))
    then = replace(then, elr=_eligible(now, then, least, wish.lost))
    leader, is_unclean = _elect(image, topic, then, wish.election, may_lead or image.may_lead)
    if is_unclean:
        then = _moved(replace(then, isr=(leader,), elr=(), recovering=True))
    elif leader in then.elr:
        then = _moved(replace(then, isr=(leader,)))
        then = replace(then, elr=_eligible(now, then, least, wish.lost))
    return _record(topic, index, replace(then, leader=leader, last_known_leader=_last_known(now, then, leader)))


def election_for(topic: TopicImage) -> Election:
    """Return how a topic wants to have its leaders elected when one is missing."""
    return Election.UNCLEAN if topic.config.unclean_leader_election_enable else Election.ONLINE


def _wished(now: PartitionImage, wish: Wish) -> PartitionImage:
    isr = now.isr if wish.isr is None else wish.isr
    return replace(
        now,
        isr=_without(isr, wish.lost),
        replicas=now.replicas if wish.replicas is None else wish.replicas,
        adding=now.adding if wish.adding is None else wish.adding,
        removing=now.removing if wish.removing is None else wish.removing,
        recovering=now.recovering if wish.recovering is None else wish.recovering,
    )


def _moved(then: PartitionImage) -> PartitionImage:
    """Complete a move of replicas if all that shall stay are in sync."""
    if not then.is_moving:
        return then
    kept = _without(then.replicas, then.removing)
    if not kept or not set(kept) <= set(then.isr):
        return then
    return replace(then, replicas=kept, isr=_without(then.isr, then.removing), adding=(), removing=())


def _eligible(now: PartitionImage, then: PartitionImage, least: int, lost: Collection[int]) -> tuple[int, ...]:
    if len(then.isr) >= min(least, then.factor):
        return ()
    had_all = {*now.isr, *now.elr} - {*then.isr, *lost}
    return tuple(node_id for node_id in then.replicas if node_id in had_all)


def _elect(
    image: ClusterImage, topic: TopicImage, then: PartitionImage, election: Election, may_lead: Callable[[int], bool]
) -> Elected:
    choice = by_choice(image, topic, then.replicas)
    candidates = [node_id for node_id in choice if node_id in (then.isr or then.elr) and may_lead(node_id)]
    if then.leader in candidates:
        preference = topic.config.fluvial_leaders_preference
        # The second choice takes over from the third only if that is in a worse rack.
        is_better = candidates[0] == choice[0] or (
            rank(image, preference, candidates[0]) < rank(image, preference, then.leader)
        )
        return Elected(candidates[0] if election is Election.PREFERRED and is_better else then.leader)
    if candidates:
        return Elected(candidates[0])
    # Beside the only replica nobody has more, also if its own log is gone.
    if election is Election.UNCLEAN or len(then.replicas) == 1:
        # Nobody's log is known to be whole. That of the last leader is likely to be the longest.
        present = [node_id for node_id in then.replicas if may_lead(node_id)]
        if present:
            return Elected(then.last_known_leader if then.last_known_leader in present else present[0], True)
    return Elected(NO_LEADER)


def _last_known(now: PartitionImage, then: PartitionImage, leader: int) -> int:
    if leader != NO_LEADER:
        return NO_LEADER
    return now.leader if not then.isr and now.leader != NO_LEADER else now.last_known_leader


def _record(topic: TopicImage, index: int, then: PartitionImage) -> PartitionChanged | None:
    now = topic.partitions[index]
    begins_epoch = then.leader != now.leader or not set(now.replicas) <= set(then.replicas)
    if then == now:
        return None
    return PartitionChanged(
        topic_id=topic.topic_id,
        partition=index,
        leader=then.leader if begins_epoch else None,
        isr=_changes(now.isr, then.isr),
        elr=_changes(now.elr, then.elr),
        last_known_leader=None if then.last_known_leader == now.last_known_leader else then.last_known_leader,
        replicas=_changes(now.replicas, then.replicas),
        adding=_changes(now.adding, then.adding),
        removing=_changes(now.removing, then.removing),
        recovering=None if then.recovering == now.recovering else then.recovering,
    )


def _changes(now: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if then == now else then


def _without(all_of_them: tuple[int, ...], others: Collection[int]) -> tuple[int, ...]:
    return tuple(node_id for node_id in all_of_them if node_id not in others)
