"""
The seven compatibility levels: which earlier versions a new schema is held against, and in which direction.

`BACKWARD`: the new schema reads data of the last version. `FORWARD`: the last version reads data of the new one.
`FULL`: both. `_TRANSITIVE`: every earlier version instead of the last. `NONE`: anything goes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fluvial.registry.formats.schema_kind import FINDINGS_MAX, Parsed, SchemaKind, Steps, TooComplexError

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
MESSAGE_CHARACTERS_MAX = 2_000
# For all the versions that one schema is held against: as much as five comparisons may take, which is some seconds.
STEPS_MAX = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schema that is held against earlier versions."""

    kind: SchemaKind
    parsed: Parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier(Candidate):
    """A version that a new schema is compared with."""

    version: int


def judge(level: str, new: Candidate, latest_first: Iterable[Earlier]) -> list[str]:
    """
    The reasons why `new` breaks `level`, empty when it does not.

    The first version of `latest_first` that fails ends the search; no further one is asked for.
    """
    if level == "NONE":
        return []
    steps = Steps(STEPS_MAX, "compare with the versions of the subject")
    for each in latest_first:
        messages = _against(level.removesuffix("_TRANSITIVE"), new, each, steps)
        if messages:
            return [*messages, f"{{validateFields: 'false', compatibility: '{level}'}}"]
        if not level.endswith("_TRANSITIVE"):
            break
    return []


def _against(direction: str, new: Candidate, old: Earlier, steps: Steps) -> list[str]:
    messages: list[str] = []
    if new.kind.name != old.kind.name:
        messages.append("Incompatible because of different schema type")
    else:
        kind = new.kind
        try:
            if direction in {"FORWARD", "FULL"}:
                messages += kind.faults(
                    reader=old.parsed, writer=new.parsed, reader_word="old", writer_word="new", steps=steps
                )
            if direction in {"BACKWARD", "FULL"}:
                messages += kind.faults(
                    reader=new.parsed, writer=old.parsed, reader_word="new", writer_word="old", steps=steps
                )
        except TooComplexError as error:
            messages.append(f"Unexpected exception during compatibility check: {error}")
    messages = _bounded(messages)
    if messages:
        messages.append(f"{{oldSchemaVersion: {old.version}}}")
        messages.append(_shown(old.parsed.text))
    return messages


def _bounded(messages: list[str]) -> list[str]:
    shown = [
        each if len(each) <= MESSAGE_CHARACTERS_MAX else each[:MESSAGE_CHARACTERS_MAX] + "…"
        for each in messages[:FINDINGS_MAX]
    ]
    return [*shown, "... and more"] if len(messages) > FINDINGS_MAX else shown


def _shown(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS_MAX:
        return f"{{oldSchema: '{text}'}}"
    return f"{{oldSchema: <truncated> '{text[:SHOWN_CHARACTERS_MAX]}...'}}"
