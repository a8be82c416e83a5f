"""
The seven compatibility levels: which earlier versions a new schema is held against, and in which direction.

`BACKWARD`: the new schema reads data of the last version. `FORWARD`: the last version reads data of the new one.
`FULL`: both. `_TRANSITIVE`: every earlier version instead of the last. `NONE`: anything goes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fluvial.registry.avro_compatibility import Difference, Fault, TooComplexError, differences
from fluvial.registry.avro_parse import Parsed

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
SHOWN_CHARACTERS_MAX = 10 * 1024

SENTENCES = {
    Fault.FIXED_SIZE_MISMATCH: "The size of FIXED type field at path '{path}' in the {reader} schema does not match "
    "with the {writer} schema",
    Fault.TYPE_MISMATCH: "The type (path '{path}') of a field in the {reader} schema does not match with the {writer} "
    "schema",
    Fault.NAME_MISMATCH: "The name of the schema has changed (path '{path}')",
    Fault.MISSING_ENUM_SYMBOLS: "The {reader} schema is missing enum symbols '{detail}' at path '{path}' in the "
    "{writer} schema",
    Fault.MISSING_UNION_BRANCH: "The {reader} schema is missing a type inside a union field at path '{path}' in the "
    "{writer} schema",
    Fault.READER_FIELD_MISSING_DEFAULT_VALUE: "The field '{detail}' at path '{path}' in the {reader} schema has no "
    "default value and is missing in the {writer} schema",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A version that a new schema is compared with."""

    version: int
    parsed: Parsed


def judge(level: str, new: Parsed, earlier: Iterable[Earlier]) -> list[str]:
    """
    The reasons why `new` breaks `level`, empty when it does not.

    `earlier` is in ascending order; the latest is compared first and the first version that fails ends the search.
    """
    if level == "NONE":
        return []
    latest_first = reversed(list(earlier))
    for each in latest_first:
        messages = _against(level.removesuffix("_TRANSITIVE"), new, each)
        if messages:
            return [*messages, f"{{validateFields: 'false', compatibility: '{level}'}}"]
        if not level.endswith("_TRANSITIVE"):
            break
    return []


def _against(direction: str, new: Parsed, old: Earlier) -> list[str]:
    messages: list[str] = []
    try:
        if direction in {"FORWARD", "FULL"}:
            found = differences(old.parsed.schema, new.schema)
            messages += [_sentence(each, reader="old", writer="new") for each in found]
        if direction in {"BACKWARD", "FULL"}:
            found = differences(new.schema, old.parsed.schema)
            messages += [_sentence(each, reader="new", writer="old") for each in found]
    except TooComplexError as error:
        messages.append(f"Unexpected exception during compatibility check: {error}")
    if messages:
        messages.append(f"{{oldSchemaVersion: {old.version}}}")
        messages.append(_shown(old.parsed.text))
    return messages


def _shown(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS_MAX:
        return f"{{oldSchema: '{text}'}}"
    return f"{{oldSchema: <truncated> '{text[:SHOWN_CHARACTERS_MAX]}...'}}"


def _sentence(difference: Difference, *, reader: str, writer: str) -> str:
    description = SENTENCES[difference.fault].format(
        path=difference.path, detail=difference.detail, reader=reader, writer=writer
    )
    return f"{{errorType:'{difference.fault}', description:'{description}', additionalInfo:'{difference.detail}'}}"
