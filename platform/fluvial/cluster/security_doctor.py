"""
The security checklist of docs/security.md: who gets in who should not, found in the settings of brokers and in files.

A rule reads facts and returns findings, as those of `doctor`; nothing here asks a cluster or looks at a disk.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fluvial.cluster.doctor import Finding, Severity

CERTIFICATE_DAYS_MIN = 30
ANONYMOUS = "User:ANONYMOUS"
SAME_EVERYWHERE = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
_LISTENER = re.compile(r"([^:,\s]+)://(\[[^\]]*\]|[^:,]*):\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """A file or folder that is for its user alone, and the bits of its mode."""

    path: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityFacts:
    """
    All that is looked at. `settings` has those of each broker by its id, without secrets.

    `certificate_days` maps the address of a broker to how many days its certificate is valid yet; `files` are those of
    this machine.
    """

    settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    certificate_days: Mapping[str, float] = field(default_factory=dict)
    files: tuple[FileFacts, ...] = ()
    known_passwords: tuple[str, ...] = ()
    """Users who signed in with a password that is well known, where that was tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    broker: int
    name: str
    host: str
    protocol: str
    mechanisms: frozenset[str]
    client_auth: str

    @property
    def about(self) -> str:
        return f"broker {self.broker} listener {self.name}"

    @property
    def knows_callers(self) -> bool:
        return self.protocol.startswith("SASL_") or (self.protocol == "SSL" and self.client_auth != "none")

    @property
    def is_reached(self) -> bool:
        """Whether other machines reach it."""
        try:
            return self.host != "localhost" and not ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return True


Rule = Callable[[SecurityFacts], Iterable[Finding]]


def examine_security(facts: SecurityFacts) -> list[Finding]:
    """Return what every rule finds."""
    return [finding for rule in RULES for finding in rule(facts)]


def _listeners(facts: SecurityFacts) -> Iterator[_Listener]:
    for broker, settings in sorted(facts.settings.items()):
        pairs = settings.get("listener.security.protocol.map", "").split(",")
        protocols = dict(pair.strip().split(":", 1) for pair in pairs if ":" in pair)
        for name, host in _LISTENER.findall(settings.get("listeners", "")):

            def text(setting: str, default: str, name: str = name, settings: Mapping[str, str] = settings) -> str:
                own = f"listener.name.{name.lower()}.{setting}"
                return settings.get(own) or settings.get(setting) or default

            mechanisms = text("sasl.enabled.mechanisms", "").upper().split(",")
            yield _Listener(
                broker=broker,
                name=name,
                host=host,
                protocol=protocols.get(name, name),
                mechanisms=frozenset(each.strip() for each in mechanisms),
                client_auth=text("ssl.client.auth", "none"),
            )


def _open(facts: SecurityFacts) -> Iterator[Finding]:
    for each in _listeners(facts):
        if each.is_reached and not each.knows_callers:
            yield Finding(
                severity=Severity.EXPOSES,
                rule="open listener",
                about=each.about,
                text=f"other machines reach {each.host or 'every address'}, and nobody is asked there who they are "
                f"({each.protocol})",
                repair="SASL_SSL, or SSL with ssl.client.auth=required, for this listener; or 127.0.0.1 as its address",
            )


def _in_clear(facts: SecurityFacts) -> Iterator[Finding]:
    for each in _listeners(facts):
        if each.protocol != "SASL_PLAINTEXT":
            continue
        if "PLAIN" in each.mechanisms:
            yield Finding(
                severity=Severity.EXPOSES if each.is_reached else Severity.NOTE,
                rule="password in clear",
                about=each.about,
                text="the mechanism PLAIN sends the password as it is, and this listener does not encrypt",
                repair="SASL_SSL for this listener, or sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
            )
        elif each.is_reached:
            yield Finding(
                severity=Severity.NOTE,
                rule="records in clear",
                about=each.about,
                text="who signs in is known, but whoever sees the network can read and change what is sent",
                repair="SASL_SSL for this listener, unless the network is one that you trust",
            )


def _rights(facts: SecurityFacts) -> Iterator[Finding]:
    secured = {each.broker for each in _listeners(facts) if each.knows_callers}
    for broker, settings in sorted(facts.settings.items()):
        if not settings.get("authorizer.class.name"):
            if broker in secured:
                yield Finding(
                    severity=Severity.EXPOSES,
                    rule="no rights",
                    about=f"broker {broker}",
                    text="whoever has signed in may do everything: authorizer.class.name is empty",
                    repair="authorizer.class.name=fluvial, super.users with the nodes' user, and `fluvial acl add`",
                )
            continue
        if settings.get("allow.everyone.if.no.acl.found") == "true":
            yield Finding(
                severity=Severity.EXPOSES,
                rule="open without ACL",
                about=f"broker {broker}",
                text="allow.everyone.if.no.acl.found=true: what no ACL is about is open to everybody, each new topic "
                "among it",
                repair="allow.everyone.if.no.acl.found=false, after `fluvial acl add` for who uses what",
            )


def _super_users(facts: SecurityFacts) -> Iterator[Finding]:
    for broker, settings in sorted(facts.settings.items()):
        users = {each.strip() for each in settings.get("super.users", "").split(";")}
        reached = [each.name for each in _listeners(facts) if each.broker == broker and not each.knows_callers]
        if ANONYMOUS in users and reached and settings.get("authorizer.class.name"):
            yield Finding(
                severity=Severity.EXPOSES,
                rule="anonymous super user",
                about=f"broker {broker}",
                text=f"{ANONYMOUS} is a super user: whoever reaches listener {', '.join(reached)} may do everything",
                repair="a listener with sign-in between nodes, and their user in super.users instead",
            )


def _unlike(facts: SecurityFacts) -> Iterator[Finding]:
    for name in SAME_EVERYWHERE:
        held = {broker: settings.get(name, "") for broker, settings in sorted(facts.settings.items())}
        if len(set(held.values())) > 1:
            yield Finding(
                severity=Severity.CONTRADICTS,
                rule="brokers differ",
                about=name,
                text="; ".join(f"broker {broker} has {value or 'nothing'}" for broker, value in held.items()),
                repair=f"the same {name} on all brokers: who is refused by one asks another",
            )


def _certificates(facts: SecurityFacts) -> Iterator[Finding]:
    for address, days in sorted(facts.certificate_days.items()):
        if days < CERTIFICATE_DAYS_MIN:
            ends = f"is valid for {days:.0f} days yet" if days > 0 else "has expired"
            yield Finding(
                severity=Severity.STOPS,
                rule="certificate",
                about=address,
                text=f"its certificate {ends}: after that nobody connects, other brokers neither",
                repair="put a new one in the place of the file; brokers take it up without a restart",
            )


def _modes(facts: SecurityFacts) -> Iterator[Finding]:
    for each in facts.files:
        if each.mode & 0o077:
            yield Finding(
                severity=Severity.EXPOSES,
                rule="file mode",
                about=each.path,
                text=f"other users of this machine get at it (mode {each.mode & 0o777:04o})",
                repair=f"chmod go= {each.path}",
            )


def _passwords(facts: SecurityFacts) -> Iterator[Finding]:
    for name in facts.known_passwords:
        yield Finding(
            severity=Severity.EXPOSES,
            rule="known password",
            about=f"user {name}",
            text="its password is made of its name, or is one of those that are tried first",
            repair=f"fluvial user set-password {name}; for a user in sasl.jaas.config, another password there",
        )


RULES: tuple[Rule, ...] = (_open, _in_clear, _rights, _super_users, _unlike, _certificates, _modes, _passwords)
