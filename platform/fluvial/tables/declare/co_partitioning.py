"""
Co-partitioning: topics with as many partitions each, so that a key has the same partition number in all of them.

Spark brings the partners of a join together wherever they lie. A reader that goes by partitions does not: a member of
a group under range assignment gets the same numbers of each topic, as a task of Kafka Streams does, and joins what it
has. A pipeline that is declared with `co_partitioned=True` says that its topics are read so, and is held to it. What is
compared are the counts; that all producers hash a key alike (`partitioner=murmur2_random`) no count can tell.
"""

from collections.abc import Iterable, Mapping

from fluvial.tables.declare.declarations import Declaration, DeclarationError, Pipeline, Publication


class CoPartitioningError(DeclarationError):
    """
    Topics that were declared to be co-partitioned have different numbers of partitions.

    `partitions` holds the number of each topic that `pipeline` joins.
    """

    def __init__(self, pipeline: str, partitions: Mapping[str, int]) -> None:
        self.pipeline = pipeline
        self.partitions = dict(partitions)
        most = max(partitions.values())
        counts = ", ".join(f"{topic} has {count}" for topic, count in sorted(partitions.items()))
        fewer = [topic for topic, count in sorted(partitions.items()) if count < most]
        repairs = ", ".join(f"`fluvial topic alter {topic} --partitions {most}`" for topic in fewer)
        super().__init__(
            f'pipeline("{pipeline}") joins topics that are not co-partitioned: of partitions {counts}, so a key '
            f"does not have the same one in each: {repairs} while there are no records, or make {' and '.join(fewer)} "
            f"again with {most} partitions and send the records again; or leave co_partitioned out, if only Spark "
            "joins them"
        )


def check_counts(declaration: Pipeline, partitions: Mapping[str, int]) -> None:
    """
    Raise :class:`CoPartitioningError` where the topics of a co-partitioned pipeline differ in `partitions`, by topic.
    """
    if declaration.co_partitioned and len(set(partitions.values())) > 1:
        raise CoPartitioningError(declaration.name, partitions)


def topics_of(declaration: Pipeline, declared: Mapping[str, Declaration]) -> frozenset[str]:
    """
    The topics that a pipeline's inputs are made from, so far as these are `declared`.
    """
    inputs = (declared.get(table) for table in declaration.inputs)
    return frozenset(each.topic for each in inputs if each is not None and not isinstance(each, Pipeline | Publication))


def check_topics(declaration: Pipeline, declared: Mapping[str, Declaration], partitions: Mapping[str, int]) -> None:
    """
    Hold a pipeline against the topics that there are; one that is not there yet is not compared.
    """
    topics = topics_of(declaration, declared)
    check_counts(declaration, {topic: count for topic, count in partitions.items() if topic in topics})


def check_topic(
    topic: str, count: int, partitions: Mapping[str, int], declared: Mapping[str, Declaration]
) -> Iterable[CoPartitioningError]:
    """
    What would be wrong with `count` partitions of `topic` beside the others, for each pipeline that reads it.
    """
    for each in declared.values():
        if isinstance(each, Pipeline) and topic in topics_of(each, declared):
            try:
                check_topics(each, declared, {**partitions, topic: count})
            except CoPartitioningError as error:
                yield error
