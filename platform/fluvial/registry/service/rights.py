"""
What a request to a secured registry may do, looked at before its handler sees it.

The rights on a subject are those on its topic: `orders-value` and `orders-key` are of the topic `orders`, any other
subject is of the topic that has its name. So an ACL is written once for records and their schemas. The owner of a
subject may change all of it with WRITE alone. What holds for all subjects asks for ALTER on the cluster.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from starlette.requests import Request
from starlette.responses import Response

from fluvial.registry import errors
from fluvial.registry.model import names
from fluvial.registry.model.ownership import Ownership
from fluvial.registry.service.policy import ANYONE
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.core.security.principal import Principal

SUFFIXES = ("-value", "-key")

Handler = Callable[[Request], Awaitable[Response]]


class Asked(Enum):
    """
    What a call asks for: its word in Confluent's refusal, and the operation on the subject's topic.

    NOTHING is for whoever is signed in; INSIDE is looked at by the handler, which leaves out what may not be seen.
    """

    NOTHING = ("", None)
    INSIDE = ("", None, "by the handler")
    READ = ("Read", Operation.DESCRIBE)
    WRITE = ("Write", Operation.WRITE)
    DELETE = ("Delete", Operation.DELETE)
    READ_SETTINGS = ("ReadCompatibility", Operation.DESCRIBE)
    WRITE_SETTINGS = ("WriteCompatibility", Operation.ALTER_CONFIGS)

    @property
    def word(self) -> str:
        """As Confluent's registry calls the operation."""
        word: str = self.value[0]
        return word

    @property
    def operation(self) -> Operation | None:
        """What an ACL on the topic has to allow."""
        found: Operation | None = self.value[1]
        return found


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request and what that may do; rights of None are all."""

    principal: Principal = ANYONE
    rights: Rights | None = None

    def may(self, asked: Asked, subject: str, ownership: Ownership) -> bool:
        """Whether ACLs let the caller do this with a subject, as far as they have a say."""
        if self.rights is None or asked.operation is None:
            return True
        topic = topic_of(subject)
        if self.rights.may(asked.operation, ResourceType.TOPIC, topic):
            return True
        owned = ownership.owned(subject)
        is_owner = owned is not None and owned.owner == self.principal.name and self.principal == Principal(owned.owner)
        return is_owner and self.rights.may(Operation.WRITE, ResourceType.TOPIC, topic)

    def may_change_all(self) -> bool:
        """Whether what holds for all subjects may be changed."""
        return self.rights is None or self.rights.may_cluster(Operation.ALTER)


UNSECURED = Caller()


def topic_of(subject: str) -> str:
    """Return the topic by whose ACLs a subject is guarded; that of a context begins with the context."""
    return next((subject.removesuffix(each) for each in SUFFIXES if subject.endswith(each)), subject)


def caller_of(request: Request) -> Caller:
    """Return who sends a request."""
    caller: Caller = getattr(request.state, "caller", UNSECURED)
    return caller


def may_read(request: Request, subject: str) -> bool:
    """Whether who sends a request may know of a subject."""
    return caller_of(request).may(Asked.READ, subject, request.app.state.registry.state.ownership)


def demand(request: Request, asked: Asked, subject: str | None) -> None:
    """
    Raise `RefusedError`, with Confluent's words, unless a request may do this with a subject.

    None, and a context as a whole, stand for what holds for all subjects.
    """
    caller = caller_of(request)
    if caller.rights is None or asked.operation is None:
        return
    if subject is None or names.is_context(subject):
        # How they are set is no secret from those who are let in.
        if asked is not Asked.READ_SETTINGS and not caller.may_change_all():
            raise errors.forbidden(f"User is denied operation {asked.word} on Global")
    elif not caller.may(asked, subject, request.app.state.registry.state.ownership):
        raise denied(asked, subject)


def denied(asked: Asked, subject: str) -> errors.RefusedError:
    """Return the refusal of Confluent's registry."""
    return errors.forbidden(f"User is denied operation {asked.word} on Subject: {subject}")
