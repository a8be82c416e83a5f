"""What can be asked of the registry that changes it: one value per kind of request, already checked for its form."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluvial.registry.model.ownership import OwnershipCommand
from fluvial.registry.model.records import Body, Reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """
    A schema as a request carries it. An `id` asks for exactly that id and a `version` for exactly that version.

    A version of -1 asks for a new one even where the same schema is registered; it says in its metadata which it is.
    """

    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: str | None = None
    rule_set: str | None = None
    id: int | None = None
    version: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that are given, in the form of `Body.as_json`."""
        body = Body(schema=self.schema, schema_type=self.schema_type, metadata=self.metadata, rule_set=self.rule_set)
        return body.as_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Give `draft` a version under `subject`, unless it has one. The reply is the `SchemaRecord` it is found under."""

    subject: str
    draft: Draft
    normalize: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteVersion:
    """Delete one version (-1: the latest). The reply is its number."""

    subject: str
    version: int
    permanent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubject:
    """Delete all versions. The reply is the list of their numbers."""

    subject: str
    permanent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfig:
    """Change settings of a subject, or of all when it is None; None takes one away. The reply is all its settings."""

    subject: str | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConfig:
    """Take settings away. The reply is what they were."""

    subject: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMode:
    """Change the mode of a subject, or of all when it is None. `force` imports over what is there."""

    subject: str | None
    mode: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteMode:
    """Take a mode away, of a context's subjects as well when `recursive`. The reply is what it was."""

    subject: str | None
    recursive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteContext:
    """Forget a context in which nothing is left; `subject` is its name as a subject. There is no reply."""

    subject: str


Command = (
    Register
    | DeleteVersion
    | DeleteSubject
    | SetConfig
    | DeleteConfig
    | SetMode
    | DeleteMode
    | DeleteContext
    | OwnershipCommand
)
