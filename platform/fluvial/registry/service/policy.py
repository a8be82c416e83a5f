"""Who may change what: the one place where the registry asks before it acts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from fluvial.registry.model import names
from fluvial.registry.model.ownership import Ownership, Producer
from log_broker.core.security.principal import ANONYMOUS, Principal

Action = Literal["register", "delete", "configure", "set_mode", "introduce", "give"]


ANYONE = ANONYMOUS
"""Who did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """
    What holds on a cluster, by its settings `fluvial.registry.unowned` and `fluvial.registry.admins`.

    `super_users`, written as `super.users` writes them, may do everything where somebody may.
    """

    unowned: str = "open"
    admins: frozenset[str] = frozenset()
    super_users: frozenset[str] = frozenset()

    def may_everything(self, principal: Principal) -> bool:
        """Whether this is an administrator."""
        return principal != ANYONE and (principal.name in self.admins or str(principal) in self.super_users)


class Policy(Protocol):
    """Decides about every change to a subject; `subject` is None for settings that hold for all."""

    def authorize(self, principal: Principal, subject: str | None, action: Action) -> str | None:
        """Return why `principal` may not do this, naming who may, or None when it may."""
        ...


class OwnersPolicy:
    """Owners alone change what they own; what nobody owns is open to everyone, unless the rules close it."""

    def __init__(self, ownership: Ownership, rules: Callable[[], Rules] = Rules) -> None:
        self._ownership = ownership
        self._rules = rules

    def authorize(self, principal: Principal, subject: str | None, action: Action) -> str | None:
        """See `Policy.authorize`."""
        rules = self._rules()
        if action == "introduce" or rules.may_everything(principal):
            # Whether a producer may be introduced `may_introduce` has said, who knows which.
            return None
        if subject is None or names.is_context(subject):
            return self._of_all(principal, rules)
        owner = self._ownership.owner(subject)
        if owner is not None:
            return None if principal == Principal(owner.name) != ANYONE else _owned(subject, owner, principal)
        if action == "give":
            return "Who claims a subject says who it is, by HTTP Basic" if principal == ANYONE else None
        return _closed(subject) if rules.unowned == "deny" else None

    def is_admin(self, principal: Principal) -> bool:
        """Whether somebody may do everything."""
        return self._rules().may_everything(principal)

    def may_introduce(self, principal: Principal, known: Producer | None) -> str | None:
        """Why `principal` may not make a producer known, or change one; `principal` has shown that it is who it is."""
        rules = self._rules()
        admins = rules.admins
        if rules.may_everything(principal) or (principal != ANYONE and known and known.name == principal.name):
            return None
        if known is not None:
            return f"Producer '{known.name}' ({known.contact}) is changed by itself or an administrator"
        return f"New producers are introduced by {', '.join(sorted(admins))}" if admins else None

    def _of_all(self, principal: Principal, rules: Rules) -> str | None:
        if rules.admins:
            return f"What holds for all subjects is changed by {', '.join(sorted(rules.admins))}"
        if principal == ANYONE and self._ownership.all_owned():
            return "Some subjects are owned: what holds for all is changed by a producer that says who it is"
        return None


def _owned(subject: str, owner: Producer, principal: Principal) -> str:
    came = "came without credentials" if principal == ANYONE else f"came from {principal.name}"
    return (
        f"Subject '{subject}' is owned by {owner.name} ({owner.contact}), who alone may change it; this request {came}."
        " Ask the owner, or send its name and password by HTTP Basic (basic.auth.user.info)"
    )


def _closed(subject: str) -> str:
    return (
        f"Subject '{subject}' has no owner, and this registry keeps such subjects closed "
        "(fluvial.registry.unowned=deny); its producer claims it with `fluvial schema register`"
    )
