"""
What the registry answers instead of a result, and what its client raises.

`RefusedError` carries the HTTP status, the error code and the message that Confluent's registry would answer; the
functions below are the one table of them.
"""

from collections.abc import Iterable

from fluvial.errors import FluvialError

STORE_FAILED = 50001
FORWARDING_FAILED = 50003
UNKNOWN_PRIMARY = 50004


class RegistryError(FluvialError):
    """The registry refused a request or could not be reached; `code` is its error code, None when it never answered."""

    def __init__(self, message: str, *, code: int | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


class RefusedError(Exception):
    """A request that the registry turns down: `status` is HTTP's, `code` the registry's own."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def subject_not_found(subject: str) -> RefusedError:
    """Nothing was ever registered under this subject, or all of it is deleted."""
    return RefusedError(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: int) -> RefusedError:
    """The subject exists, this version of it does not."""
    return RefusedError(404, 40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | str | None = None) -> RefusedError:
    """No schema has this id or GUID, or none under the subject has this text."""
    return RefusedError(404, 40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def subject_soft_deleted(subject: str) -> RefusedError:
    """The subject is already soft-deleted."""
    return RefusedError(404, 40404, f"Subject '{subject}' was soft deleted.Set permanent=true to delete permanently")


def subject_not_soft_deleted(subject: str) -> RefusedError:
    """A permanent deletion comes after a soft one."""
    return RefusedError(404, 40405, f"Subject '{subject}' was not deleted first before being permanently deleted")


def version_soft_deleted(subject: str, version: int) -> RefusedError:
    """The version is already soft-deleted."""
    message = f"Subject '{subject}' Version {version} was soft deleted.Set permanent=true to delete permanently"
    return RefusedError(404, 40406, message)


def version_not_soft_deleted(subject: str, version: int) -> RefusedError:
    """A permanent deletion of a version comes after a soft one."""
    message = f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted"
    return RefusedError(404, 40407, message)


def config_not_found(subject: str) -> RefusedError:
    """The subject follows the global compatibility level."""
    return RefusedError(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")


def mode_not_found(subject: str) -> RefusedError:
    """The subject follows the global mode."""
    return RefusedError(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")


def incompatible(subject: str, messages: list[str]) -> RefusedError:
    """The schema breaks the compatibility level of its subject; `messages` say where."""
    details = f"[{', '.join(messages)}]"
    return RefusedError(
        409,
        409,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}", details: {details}',
    )


def invalid_schema(details: str, *, schema_type: str = "AVRO") -> RefusedError:
    """The text is not a schema of its type."""
    return RefusedError(422, 42201, f"Invalid schema of type {schema_type}, details: {details}")


def unsupported_type(schema_type: str, kept: Iterable[str]) -> RefusedError:
    """The schema is of a type that this registry does not keep."""
    return RefusedError(422, 42201, f"Invalid schema type {schema_type[:100]}; the types are {', '.join(kept)}")


def empty_schema() -> RefusedError:
    """The request carries no schema."""
    return RefusedError(422, 42201, "Empty schema")


def invalid_version(version: str) -> RefusedError:
    """A version is a positive 32-bit number or `latest`."""
    return RefusedError(
        422,
        42202,
        f"The specified version '{version[:100]}' is not a valid version id. "
        'Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def invalid_compatibility() -> RefusedError:
    """Not one of the seven levels."""
    return RefusedError(
        422,
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, "
        "backward_transitive, forward_transitive, and full_transitive",
    )


def invalid_mode() -> RefusedError:
    """Not a mode that this registry knows."""
    return RefusedError(422, 42204, "Invalid mode. Valid values are READWRITE, READONLY and IMPORT.")


def not_permitted(message: str) -> RefusedError:
    """The mode of the subject forbids it."""
    return RefusedError(422, 42205, message)


def reference_exists(subject: str, version: int) -> RefusedError:
    """Another schema refers to what was to be deleted."""
    key = f"{{magic=1,keytype=SCHEMA,subject={subject},version={version}}}"
    return RefusedError(422, 42206, f"One or more references exist to the schema {key}.")


def schema_too_large() -> RefusedError:
    """The log takes no record of this size."""
    return RefusedError(422, 42209, "Register operation failed because schema is too large")


def invalid_rule_set(message: str) -> RefusedError:
    """The rules could not be run by a client."""
    return RefusedError(422, 42210, message)


def context_not_empty(context: str) -> RefusedError:
    """There are subjects in the context, or what is left of them."""
    return RefusedError(422, 42211, f"The specified context '{context}' is not empty.")


def invalid_subject(subject: str) -> RefusedError:
    """The name cannot be a subject's."""
    return RefusedError(422, 42208, f"The specified subject '{subject}' is not a valid.")


def too_large(what: str) -> RefusedError:
    """The request or the schema is over its bound."""
    return RefusedError(413, 413, what)


def busy(message: str) -> RefusedError:
    """There is no room for the request now; a client may try again."""
    return RefusedError(503, 503, message)


def invalid_request(message: str) -> RefusedError:
    """The request's JSON is not of the form that this call takes."""
    return RefusedError(400, 400, message)


def malformed_json(message: str) -> RefusedError:
    """The request's body is not JSON."""
    return RefusedError(400, 400, message)


def store_failed(message: str) -> RefusedError:
    """The log did not take the change; whether it will be seen later is not known."""
    return RefusedError(500, STORE_FAILED, message)


def forwarding_failed(message: str) -> RefusedError:
    """The node that writes did not answer; whether it has written is not known."""
    return RefusedError(500, FORWARDING_FAILED, f"Error while forwarding the request to the primary: {message}")


def unknown_primary(message: str) -> RefusedError:
    """Nobody is known who writes; nothing was written."""
    return RefusedError(500, UNKNOWN_PRIMARY, f"The primary is not known: {message}")


def forbidden(message: str) -> RefusedError:
    """The policy does not let this principal do it."""
    return RefusedError(403, 40301, message)


def unauthorized(message: str) -> RefusedError:
    """The request says who sends it, and that is not shown."""
    return RefusedError(401, 40101, message)


def producer_not_found(name: str) -> RefusedError:
    """No producer of this name is known."""
    return RefusedError(404, 40420, f"Producer '{name}' not found.")


def owner_not_found(subject: str) -> RefusedError:
    """Nobody owns the subject, or ever did."""
    return RefusedError(404, 40421, f"Subject '{subject}' has no owner.")


def weak_password(characters: int) -> RefusedError:
    """The password could be found out from its hash."""
    return RefusedError(422, 42220, f"A producer's password has {characters} characters or more")


def changed_meanwhile(name: str) -> RefusedError:
    """Somebody else changed the same producer between reading and writing."""
    return RefusedError(409, 40920, f"Producer '{name}' was changed by another request; look and try again")
