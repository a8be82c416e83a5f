"""Settings of topics that say what their records must be like, and what becomes of those that are not."""

from log_broker.config.keys import word_key as _word

VALIDATION_LEVELS = ("none", "id", "payload")
VIOLATION_ANSWERS = ("reject", "quarantine")
PRODUCERS = "fluvial.producers"
ONLY_OWNER = "owner"
_STRATEGIES = "io.confluent.kafka.serializers.subject."
SUBJECT_NAME_STRATEGIES = tuple(
    _STRATEGIES + name for name in ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")
)

CONTRACT_KEYS = (
    _word(
        "fluvial.key.schema.validation",
        "none",
        "Which keys may enter: any, framed ones, ones that decode.",
        *VALIDATION_LEVELS,
    ),
    _word(
        "fluvial.value.schema.validation",
        "none",
        "Which values may enter: any, framed ones, ones that decode.",
        *VALIDATION_LEVELS,
    ),
    _word(
        "fluvial.schema.violation",
        "reject",
        "What becomes of a record that breaks its contract: its batch is refused, or it goes to <topic>.quarantine.",
        *VIOLATION_ANSWERS,
    ),
    _word(
        PRODUCERS,
        ONLY_OWNER,
        "Who of those that an authorizer lets write may produce: all of them, or the owner of the values' subject, if "
        "it has one.",
        "any",
        ONLY_OWNER,
    ),
    _word(
        "confluent.key.subject.name.strategy",
        SUBJECT_NAME_STRATEGIES[0],
        "Which subject holds the schemas of the keys.",
        *SUBJECT_NAME_STRATEGIES,
    ),
    _word(
        "confluent.value.subject.name.strategy",
        SUBJECT_NAME_STRATEGIES[0],
        "Which subject holds the schemas of the values.",
        *SUBJECT_NAME_STRATEGIES,
    ),
)

# Confluent's names for the level `id`.
TOPIC_ALIASES = {
    "confluent.key.schema.validation": "fluvial.key.schema.validation",
    "confluent.value.schema.validation": "fluvial.value.schema.validation",
}
