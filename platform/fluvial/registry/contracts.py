"""
Contracts: the Avro schemas in `schemas/<producer>/` and who answers for them, as `owner.toml` says.

    producer = "weather_service"                 # the folder's name
    contact = "weather@example.org"
    subjects = ["weather-value"]                 # each with its schema in weather.avsc (or weather-value.avsc)
    compatibility = "BACKWARD"                   # or a table of subject = level; BACKWARD when left out
    topics = ["weather"]                         # the topics this producer writes; or a table, below
    credentials = "env:WEATHER_PASSWORD"         # or file:PATH: with which it owns its subjects; may be left out
    principal = "User:weather"                   # the cluster's user that it is; User:<producer> when left out
    tags = {domain = "weather"}                  # words to find its topics and their tables by; may be left out
    links = {runbook = "https://wiki.example"}   # addresses by the names to show; may be left out

A table instead of the list of topics says how each is to be, and `fluvial schema register` makes it so:

    [topics.weather]
    partitions = 3                               # and replication_factor; all other keys are settings of the topic
    cleanup.policy = "compact"

Everything is checked when it is read: a mistake names the file, the key and what to write instead.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parseaddr
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

from fluvial.errors import FluvialError
from fluvial.properties import flat
from fluvial.registry.client import RegisteredSchema, RegistryClient
from fluvial.registry.credentials import CredentialsError, check_reference, read_secret
from fluvial.registry.errors import RegistryError
from fluvial.registry.formats.avro.parse import AvroSyntaxError, parse
from fluvial.registry.model.compatibility import LEVELS

OWNER_FILE = "owner.toml"
KEYS = frozenset(
    {"producer", "contact", "subjects", "compatibility", "topics", "credentials", "principal", "tags", "links"}
)
SUFFIXES = ("-value", "-key")
VALUE_VALIDATION = ("fluvial.value.schema.validation", "confluent.value.schema.validation")

# What Confluent's registry says of an incompatible schema: each finding, and the version that it was found against.
_DESCRIPTION = re.compile(r"description:'(.*)', additionalInfo:", re.DOTALL)
_OLD_VERSION = re.compile(r"\{oldSchemaVersion: (\d+)\}")

# What a catalogue takes for the value of a tag.
_TAG = re.compile(r"[A-Za-z0-9_.-]{1,63}")


class ContractError(FluvialError):
    """A contract's file is missing or wrong; the message names file, key and repair."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTopic:
    """How a topic is to be; numbers of None are the cluster's."""

    partitions: int | None = None
    replication_factor: int | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """
    One subject as its producer declares it.

    `schema` is the parsed JSON of the schema, `text` the file's text, `topics` the topics whose keys or values follow
    it. `credentials` refers to the producer's password. `principal` is the name of the cluster's user that the
    producer is, where that is not the producer's. `described` is how its topic is to be, if it says so. `tags`, and
    `links` by the names to show, are of everything that the producer writes.
    """

    producer: str
    contact: str
    subject: str
    path: Path
    schema: Mapping[str, Any]
    text: str
    compatibility: str
    topics: tuple[str, ...]
    credentials: str | None = None
    principal: str | None = None
    described: DescribedTopic | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    links: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def topic(self) -> str:
        """The topic that the subject is named after."""
        return self.topics[0]

    @property
    def owner(self) -> str:
        """The name of the user of the cluster who owns the subject."""
        return self.principal or self.producer

    @property
    def email(self) -> str:
        """The address in `contact`, which may also hold a name."""
        return parseaddr(self.contact)[1]

    @property
    def is_key(self) -> bool:
        """Whether it describes the topic's keys and not its values."""
        return self.subject.endswith("-key")


Passwords = Callable[[Contract], str | None]
"""The password of a contract's producer; None for a producer that claims nothing."""

Status = Literal["new", "unchanged", "outdated", "compatible", "incompatible", "refused"]


WRONG = frozenset({"incompatible", "refused", "outdated"})
"""The statuses of a schema that cannot be shipped as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """
    A contract that is in the registry; `is_new` when this call put it there.

    `outdated` says what to do about a file that holds an older version than the latest: registering it again does not
    make it the latest.
    """

    contract: Contract
    id: int
    is_new: bool
    outdated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """How a contract stands against the registry; `messages` say why where its status is one of WRONG."""

    contract: Contract
    status: Status
    messages: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether it is the latest version, or could be registered now."""
        return self.status not in WRONG


def load_contracts(directory: Path | str) -> list[Contract]:
    """
    Read every contract below `directory`, one folder a producer, in the order of their subjects.

    Raises `ContractError` for a folder without `owner.toml`, a key that is missing, wrong or unknown, a schema that is
    none, a schema file that no subject claims and a subject that two producers claim.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ContractError(root, "there is no such folder; contracts are in schemas/<producer>/")
    contracts: dict[str, Contract] = {}
    for folder in sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith(".")):
        for contract in _of_producer(folder):
            other = contracts.setdefault(contract.subject, contract)
            if other is not contract:
                raise ContractError(
                    folder / OWNER_FILE,
                    f"`subjects` claims {contract.subject}, which {other.producer} owns; a subject has one owner",
                )
    return [contracts[subject] for subject in sorted(contracts)]


def declared_password(contract: Contract) -> str | None:
    """Return what `credentials` in `owner.toml` refers to, None when it names none; raises ContractError."""
    if contract.credentials is None:
        return None
    folder = contract.path.parent
    try:
        return read_secret(contract.credentials, folder=folder)
    except CredentialsError as error:
        raise ContractError(folder / OWNER_FILE, f"`credentials`: {error}") from None


def register_all(
    anyone: RegistryClient,
    contracts: Iterable[Contract],
    on_progress: Callable[[Registered], None] | None = None,
    *,
    passwords: Passwords = declared_password,
) -> list[Registered]:
    """
    Bring the registry to what the contracts say; what already stands there stays as it is.

    A producer with a password claims its subjects first, where the registry knows owners. Raises `RegistryError` for
    the first contract that the registry refuses; those before it are registered, and running it again goes on there.
    """
    done = []
    signed_in: dict[str, tuple[RegistryClient, bool]] = {}
    for contract in contracts:
        try:
            if contract.producer not in signed_in:
                signed_in[contract.producer] = _sign_in(anyone, contract, passwords(contract))
            client, claims = signed_in[contract.producer]
            if claims:
                client.give(contract.subject, contract.owner)
            if client.get_config(contract.subject) != contract.compatibility:
                client.set_config(contract.compatibility, contract.subject)
            known = client.look_up(contract.subject, contract.text)
            schema_id = known.id if known is not None else client.register(contract.subject, contract.text)
            outdated = None if known is None else _outdated(client, known, str(contract.path))
        except RegistryError as error:
            why = _why_incompatible(client, contract) if error.code == HTTPStatus.CONFLICT else None
            raise RegistryError(f"{contract.path}: {why or error}", code=error.code, status=error.status) from error
        registered = Registered(contract=contract, id=schema_id, is_new=known is None, outdated=outdated)
        done.append(registered)
        if on_progress is not None:
            on_progress(registered)
    return done


def _why_incompatible(client: RegistryClient, contract: Contract) -> str | None:
    """Why a contract may not follow what is registered, without the schemas that the registry repeats for it."""
    messages = client.check(contract.subject, contract.text)
    found = [_DESCRIPTION.search(each) for each in messages]
    whys = [match[1] for match in found if match]
    if not whys:
        return None
    versions = [match[1] for match in map(_OLD_VERSION.fullmatch, messages) if match]
    repair = ": give it a default" if any("READER_FIELD_MISSING_DEFAULT_VALUE" in each for each in messages) else ""
    return (
        f"Schema being registered is incompatible with version {', '.join(versions)} of {contract.subject} "
        f"({contract.compatibility}): {'; '.join(whys)}{repair}"
    )


def _sign_in(anyone: RegistryClient, contract: Contract, password: str | None) -> tuple[RegistryClient, bool]:
    """The registry as the contract's producer sees it, and whether that may claim subjects there."""
    if password is None:
        if anyone.principal() is None:
            return anyone, False
        # A registry that knows its users: the producer itself claims, or an administrator for it.
        return anyone, anyone.introduce(contract.owner, contract.contact)
    client = anyone.acting_as(contract.owner, password)
    return client, client.introduce(contract.owner, contract.contact)


def check_all(client: RegistryClient, contracts: Iterable[Contract]) -> list[CheckResult]:
    """Hold every contract against the registry without changing it. Raises `RegistryError` when it does not answer."""
    return [_check(client, contract) for contract in contracts]


def check_text(client: RegistryClient, subject: str, text: str) -> tuple[Status, tuple[str, ...]]:
    """How a schema stands against a subject, and why not when it may not follow what is registered there."""
    try:
        known = client.look_up(subject, text)
        if known is not None:
            outdated = _outdated(client, known, "what is checked")
            return ("unchanged", ()) if outdated is None else ("outdated", (outdated,))
        messages = client.check(subject, text)
        if messages:
            return "incompatible", tuple(messages)
        return ("compatible" if subject in client.subjects() else "new"), ()
    except RegistryError as error:
        if error.code is None:
            raise
        return "refused", (str(error),)


def _outdated(client: RegistryClient, known: RegisteredSchema, what: str) -> str | None:
    """What to do about a version that is registered and not the latest; None for the latest."""
    latest = client.latest(known.subject)
    if latest.version == known.version or latest.id == known.id:
        return None
    return (
        f"{what} is version {known.version} of {known.subject}, and version {latest.version} is the latest, which is "
        f"what tables are read as: `fluvial schema show {known.subject}` prints it for the file; or, to go back, "
        'change a word in the file (such as a "doc") and register it as the next version'
    )


def _check(client: RegistryClient, contract: Contract) -> CheckResult:
    status, messages = check_text(client, contract.subject, contract.text)
    return CheckResult(contract=contract, status=status, messages=messages)


def _of_producer(folder: Path) -> list[Contract]:
    path = folder / OWNER_FILE
    owner = _owner(path)
    producer = _text(path, owner, "producer", f'producer = "{folder.name}"')
    if producer != folder.name:
        raise ContractError(
            path, f'`producer` is "{producer}" but the folder is {folder.name}; write the folder\'s name'
        )
    contact = _text(path, owner, "contact", 'contact = "team@example.org"')
    if "@" not in parseaddr(contact)[1]:
        raise ContractError(path, '`contact` holds no e-mail address; write for example contact = "team@example.org"')
    subjects = _texts(path, owner, "subjects", 'subjects = ["<topic>-value"]')
    described = _described(path, owner, subjects)
    topics = tuple(described) or _texts(path, owner, "topics", 'topics = ["<topic>"]')
    levels = _levels(path, owner, subjects)
    credentials = _credentials(path, owner)
    principal = _principal(path, owner)
    tags = _table(path, owner, "tags", _is_tag, 'tags = {domain = "weather"}, of letters, digits, _, - and .')
    links = _table(path, owner, "links", _is_address, 'links = {runbook = "https://wiki.example"}')
    contracts = []
    for subject in subjects:
        file, text, schema = _schema(folder, subject)
        (topic,) = _topics_of(path, subject, topics)
        contracts.append(
            Contract(
                producer=producer,
                contact=contact,
                subject=subject,
                path=file,
                schema=schema,
                text=text,
                compatibility=levels[subject],
                topics=(topic,),
                described=described.get(topic),
                credentials=credentials,
                principal=principal,
                tags=tags,
                links=links,
            )
        )
    unclaimed = sorted({*folder.glob("*.avsc")} - {each.path for each in contracts})
    if unclaimed:
        raise ContractError(unclaimed[0], f"no subject in {OWNER_FILE} claims it; add {unclaimed[0].stem}-value")
    return contracts


def _owner(path: Path) -> dict[str, Any]:
    try:
        owner = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ContractError(path, "is missing; it names producer, contact, subjects and topics") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ContractError(path, f"cannot be read as TOML: {error}") from None
    unknown = sorted(owner.keys() - KEYS)
    if unknown:
        raise ContractError(path, f"`{unknown[0]}` is not a key of it; the keys are {', '.join(sorted(KEYS))}")
    return owner


def _text(path: Path, owner: Mapping[str, Any], key: str, example: str) -> str:
    value = owner.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ContractError(path, f"`{key}` is missing or not a text; write for example {example}")
    return value


def _texts(path: Path, owner: Mapping[str, Any], key: str, example: str) -> tuple[str, ...]:
    value = owner.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise ContractError(path, f"`{key}` is missing or not a list of texts; write for example {example}")
    twice = [each for each in value if value.count(each) > 1]
    if twice:
        raise ContractError(path, f"`{key}` names {twice[0]} twice; name it once")
    return tuple(value)


def _described(path: Path, owner: Mapping[str, Any], subjects: tuple[str, ...]) -> dict[str, DescribedTopic]:
    tables = owner.get("topics")
    if not isinstance(tables, dict):
        return {}
    return {name: _described_topic(path, name, table, subjects) for name, table in tables.items()}


def _described_topic(path: Path, name: str, table: Any, subjects: tuple[str, ...]) -> DescribedTopic:
    if not isinstance(table, dict):
        raise ContractError(path, f"`topics.{name}` is not a table; write [topics.{name}] and a line for each property")
    settings: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for key, value in flat(table):
        if key in {"partitions", "replication_factor"}:
            if type(value) is not int or value < 1:
                raise ContractError(path, f"`topics.{name}.{key}` is {value!r}; write a number from 1 on")
            numbers[key] = value
        elif isinstance(value, str | int | float):
            settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise ContractError(path, f"`topics.{name}.{key}` is {value!r}; write a text, a number, true or false")
    if f"{name}-value" in subjects and settings.keys().isdisjoint(VALUE_VALIDATION):
        settings[VALUE_VALIDATION[0]] = "payload"
    return DescribedTopic(settings=MappingProxyType(settings), **numbers)


def _credentials(path: Path, owner: Mapping[str, Any]) -> str | None:
    if "credentials" not in owner:
        return None
    reference = owner["credentials"]
    wrong = check_reference(reference) if isinstance(reference, str) else "is not a text"
    if wrong is not None:
        # What stands there may be a secret, and is not repeated.
        raise ContractError(path, f"`credentials` {wrong}")
    return str(reference)


def _principal(path: Path, owner: Mapping[str, Any]) -> str | None:
    value = owner.get("principal")
    if value is None:
        return None
    kind, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (kind == "User" and colon and name.strip() and name != "*"):
        raise ContractError(path, '`principal` is no user of the cluster; write for example principal = "User:weather"')
    return str(name)


def _table(
    path: Path, owner: Mapping[str, Any], key: str, check: Callable[[str], bool], example: str
) -> Mapping[str, str]:
    value = owner.get(key, {})
    if not isinstance(value, dict):
        raise ContractError(path, f"`{key}` is not a table; write for example {example}")
    for name, text in value.items():
        if not (name and isinstance(text, str) and check(text)):
            raise ContractError(path, f"`{key}` has {name!r} = {text!r}; write for example {example}")
    return MappingProxyType(value)


def _is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def _is_address(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


def _levels(path: Path, owner: Mapping[str, Any], subjects: tuple[str, ...]) -> dict[str, str]:
    declared = owner.get("compatibility", "BACKWARD")
    by_subject = declared if isinstance(declared, dict) else dict.fromkeys(subjects, declared)
    for subject, level in by_subject.items():
        if subject not in subjects:
            raise ContractError(path, f"`compatibility` names {subject}, which is not in `subjects`")
        if level not in LEVELS:
            raise ContractError(path, f"`compatibility` is {level!r}; write one of {', '.join(LEVELS)}")
    return {subject: by_subject.get(subject, "BACKWARD") for subject in subjects}


def _topics_of(path: Path, subject: str, topics: tuple[str, ...]) -> tuple[str, ...]:
    named = next((subject.removesuffix(suffix) for suffix in SUFFIXES if subject.endswith(suffix)), None)
    if named is None:
        raise ContractError(path, f"`subjects` holds {subject}; a subject is named <topic>-value or <topic>-key")
    if named not in topics:
        raise ContractError(path, f"`topics` does not name {named}, which the subject {subject} describes; add it")
    return (named,)


def _schema(folder: Path, subject: str) -> tuple[Path, str, Mapping[str, Any]]:
    stem = next((subject.removesuffix(suffix) for suffix in SUFFIXES if subject.endswith(suffix)), subject)
    exact, short = folder / f"{subject}.avsc", folder / f"{stem}.avsc"
    path = exact if exact.exists() else short
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ContractError(
            path, f"is missing; {OWNER_FILE} claims the subject {subject}, put its schema here"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(path, f"cannot be read: {error}") from None
    try:
        parsed = parse(text)
        schema = json.loads(text)
    except AvroSyntaxError as error:
        raise ContractError(path, f"is not an Avro schema: {error}") from None
    # A contract that is a bare type's name, `"string"`, is given the form that has room for more.
    return path, text, schema if isinstance(schema, dict) else {"type": json.loads(parsed.text)}
