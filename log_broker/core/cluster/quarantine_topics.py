"""Where records go that break their topic's contract: a topic beside theirs, which the broker alone writes to."""

from log_broker.core.cluster.image import INTERNAL_TOPICS

SUFFIX = ".quarantine"
TOPIC_NAME_LENGTH_MAX = 249


def quarantine_of(topic: str) -> str:
    """Return the name of the topic that takes what `topic` does not."""
    return topic + SUFFIX


def is_quarantine(topic: str) -> bool:
    """Whether a topic is the quarantine of another, to which clients do not write."""
    return topic.endswith(SUFFIX)


def may_have_quarantine(topic: str) -> bool:
    """Whether there can be one beside `topic`; where not, bad records are refused whatever the topic says."""
    is_ordinary = topic not in INTERNAL_TOPICS and not is_quarantine(topic)
    return is_ordinary and len(topic) + len(SUFFIX) <= TOPIC_NAME_LENGTH_MAX
