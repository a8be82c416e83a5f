"""
A small client of any Confluent-compatible schema registry, for the command line, the pipelines and their tests.

It keeps no cache and no state but a connection pool; `httpx` is imported when the first client is made. Why it is not
confluent-kafka's: docs/decisions/0019-our-own-registry-client.md.
"""

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from fluvial.kafka.tls import tls_context
from fluvial.properties import NO_PROPERTIES, Properties
from fluvial.registry.endpoint import USER_INFO, without_users
from fluvial.registry.errors import RegistryError

if TYPE_CHECKING:
    import httpx

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
# The last two: a subject has no level, or no mode, of its own.
NOT_FOUND = frozenset({40401, 40402, 40403, 40408, 40409})
CHANGED_MEANWHILE = 40920


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """One version of a subject. `schema` is its JSON text."""

    subject: str
    version: int
    id: int
    schema: str


class RegistryClient:
    """
    Asks the registry at `url`, where a user's name and password may stand before an @.

    `properties` are those of `registry_properties`: who asks, by password or token, and the certificates of TLS.

    `url` may name several nodes of one registry, with commas between: when one cannot be reached the next is asked, and
    stays the one that is asked. A deletion that may have been heard is not said again, for it would not be found.

    Every method raises `RegistryError` when the registry refuses (its `code` says why) or does not answer.
    """

    def __init__(self, url: str, *, properties: Properties = NO_PROPERTIES) -> None:
        import httpx

        bare, properties = without_users(url, properties)
        self._urls = [each.rstrip("/") for each in bare.split(",")]
        self.url = ",".join(self._urls)
        name, colon, password = (properties.get(USER_INFO) or "").partition(":")
        self._auth = (name, password) if colon else None
        self._http = httpx.Client(
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS),
            headers={"Accept": MEDIA_TYPE, **_bearer(properties)},
            # Reading the system's certificates takes longer than all else here; plain HTTP has no use for them.
            verify=tls_context(properties) if "https:" in self.url.lower() else False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    @property
    def name(self) -> str | None:
        """Who the registry is told that it is asked by."""
        return None if self._auth is None else self._auth[0]

    def acting_as(self, name: str, password: str) -> "RegistryClient":
        """The same registry, asked by somebody else; it shares the connections, which are closed with this one."""
        other = copy(self)
        other._auth = (name, password)
        return other

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """The names of all subjects."""
        return list(self._call("GET", "/subjects", deleted=deleted))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject in ascending order."""
        return list(self._call("GET", f"/subjects/{_part(subject)}/versions", deleted=deleted))

    def version(self, subject: str, version: int | str, *, deleted: bool = False) -> RegisteredSchema:
        """One version of a subject, or its `latest`."""
        return _registered(self.document(subject, version, deleted=deleted, resolved=True))

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject."""
        return self.version(subject, "latest")

    def schema_by_id(self, schema_id: int) -> str:
        """The text of a schema, with what it refers to spelled out inside it."""
        return str(self._call("GET", f"/schemas/ids/{schema_id}", format="resolved")["schema"])

    def versions_of_subject(self, subject: str) -> list[RegisteredSchema]:
        """Every version of a subject in ascending order; deleted ones as well, which data outlives."""
        return [self.version(subject, each, deleted=True) for each in self.versions(subject, deleted=True)]

    def register(self, subject: str, schema: str) -> int:
        """Register a schema and return its id; one that is already registered keeps its id and version."""
        return self.register_document(subject, {"schema": schema})

    def look_up(self, subject: str, schema: str) -> RegisteredSchema | None:
        """The version under which a schema is registered, or None."""
        found = self._found("POST", f"/subjects/{_part(subject)}", {"schema": schema})
        return None if found is None else _registered(found)

    def check(self, subject: str, schema: str) -> list[str]:
        """Why a schema may not follow what is registered under `subject`; empty when it may."""
        return self.check_against(subject, None, {"schema": schema})

    def check_against(self, subject: str, version: int | str | None, document: Mapping[str, Any]) -> list[str]:
        """Why a schema may not follow one version of `subject`, None for all, under its level; empty when it may."""
        path = f"/compatibility/subjects/{_part(subject)}/versions" + ("" if version is None else f"/{version}")
        answer = self._call("POST", path, document, verbose=True)
        return [] if answer["is_compatible"] else [str(each) for each in answer.get("messages") or ["incompatible"]]

    def document(
        self, subject: str, version: int | str, *, deleted: bool = False, resolved: bool = False
    ) -> dict[str, Any]:
        """All that the registry says of one version of a subject: `id`, `schema`, `references`, and so on."""
        query = {"format": "resolved"} if resolved else {}
        return dict(self._call("GET", f"/subjects/{_part(subject)}/versions/{version}", None, deleted=deleted, **query))

    def register_document(self, subject: str, document: Mapping[str, Any]) -> int:
        """Register a version as `document` gives it, with its id and version where it names them; return the id."""
        return int(self._call("POST", f"/subjects/{_part(subject)}/versions", document)["id"])

    def level_in_scope(self, subject: str) -> str:
        """The compatibility level that holds for a subject."""
        return str(self._call("GET", _settings_path("config", subject), defaultToGlobal=True)["compatibilityLevel"])

    def get_config(self, subject: str | None = None) -> str | None:
        """The compatibility level set for a subject (None when it follows the level for all), or the level for all."""
        settings = self.settings(subject)
        return None if settings is None else str(settings["compatibilityLevel"])

    def set_config(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or of all."""
        self.put_settings(subject, {"compatibility": level})

    def settings(self, subject: str | None = None) -> dict[str, Any] | None:
        """The settings of a subject, None where it has none of its own; or those for all."""
        return self._found("GET", _settings_path("config", subject))

    def put_settings(self, subject: str | None, settings: Mapping[str, Any]) -> None:
        """Set what `settings` gave."""
        content = {("compatibility" if key == "compatibilityLevel" else key): value for key, value in settings.items()}
        self._call("PUT", _settings_path("config", subject), content)

    def mode(self, subject: str | None = None) -> str | None:
        """The mode set for a subject, None when it follows the mode for all; or that for all."""
        found = self._found("GET", _settings_path("mode", subject))
        return None if found is None else str(found["mode"])

    def set_mode(self, mode: str, subject: str | None = None, *, force: bool = False) -> None:
        """Set the mode of a subject, or of all."""
        self._call("PUT", _settings_path("mode", subject), {"mode": mode}, force=force)

    def delete_mode(self, subject: str) -> None:
        """Let a subject follow the mode for all."""
        self._call("DELETE", _settings_path("mode", subject))

    def delete_version(self, subject: str, version: int) -> None:
        """Hide one version of a subject."""
        self._call("DELETE", f"/subjects/{_part(subject)}/versions/{version}")

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete every version of a subject and return their numbers; `permanent` comes after a plain deletion."""
        return list(self._call("DELETE", f"/subjects/{_part(subject)}", permanent=permanent))

    def registrations(self, subject: str) -> list[dict[str, Any]] | None:
        """The versions with `at` (ms) and `by`; None where the registry does not keep that."""
        try:
            return list(self._call("GET", f"/fluvial/registrations/{_part(subject)}"))
        except RegistryError as error:
            if error.status == 404 and error.code not in NOT_FOUND:
                return None
            raise

    def principal(self) -> str | None:
        """Whom the registry takes this client for: `User:ada`; None where it asks nobody, or is not ours."""
        try:
            found = self._call("GET", "/fluvial/principal")["principal"]
        except RegistryError as error:
            if error.status in {404, 405}:
                return None
            raise
        return None if found is None else str(found)

    def introduce(self, name: str, contact: str | None = None, *, password: str | None = None) -> bool:
        """
        Make a producer known or change its contact or password; say whether this registry knows of owners at all.

        One that was not known gets the password that this client asks with.
        """
        content = {"contact": contact, "password": password}
        given = {key: value for key, value in content.items() if value is not None}
        path = f"/fluvial/producers/{_part(name)}"
        try:
            try:
                self._call("PUT", path, given)
            except RegistryError as error:
                if error.code != CHANGED_MEANWHILE:
                    raise
                self._call("PUT", path, given)
        except RegistryError as error:
            if error.status in {404, 405}:
                return False
            raise
        return True

    def give(self, subject: str, owner: str | None) -> dict[str, Any]:
        """Give a subject to a producer: to oneself what nobody owns, one's own to another; None gives it up."""
        return dict(self._call("PUT", f"/fluvial/owners/{_part(subject)}", {"owner": owner}))

    def owner(self, subject: str) -> dict[str, Any] | None:
        """Who owns a subject, with `contact` and `history`; None for one that never had an owner."""
        try:
            return dict(self._call("GET", f"/fluvial/owners/{_part(subject)}"))
        except RegistryError as error:
            # A registry that knows of no owners has no such path.
            if error.status == 404:
                return None
            raise

    def producer(self, name: str) -> dict[str, Any]:
        """A producer's `contact` and the `subjects` that it owns."""
        return dict(self._call("GET", f"/fluvial/producers/{_part(name)}"))

    def _found(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        try:
            return dict(self._call(method, path, content))
        except RegistryError as error:
            if error.code in NOT_FOUND:
                return None
            raise

    def _call(self, method: str, path: str, content: Mapping[str, Any] | None = None, **query: bool | str) -> Any:
        import httpx

        body, headers = (None, {}) if content is None else (json.dumps(content), {"Content-Type": MEDIA_TYPE})
        failure: Exception | None = None
        for url in list(self._urls):
            try:
                response = self._http.request(
                    method, url + path, params=query, content=body, headers=headers, auth=self._auth
                )
                return _result(response, url)
            except httpx.TransportError as error:
                failure = error
                if method == "DELETE" and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    break
                self._urls.append(self._urls.pop(0))
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failure = error
                break
        if "CERTIFICATE_VERIFY_FAILED" in str(failure):
            raise RegistryError(
                f"the schema registry at {self.url} has a certificate that is not trusted ({failure}); "
                "name the PEM file of its CA in ssl.ca.location of [registry]"
            ) from failure
        raise RegistryError(
            f"the schema registry at {self.url} does not answer ({failure}); "
            "is it running, and is its URL right (--registry-url, FLUVIAL_REGISTRY_URL)?"
        ) from failure


def _bearer(properties: Properties) -> dict[str, str]:
    named = {
        "Authorization": properties.get("bearer.auth.token"),
        "target-sr-cluster": properties.get("bearer.auth.logical.cluster"),
        "Confluent-Identity-Pool-Id": properties.get("bearer.auth.identity.pool.id"),
    }
    prefixes = {"Authorization": "Bearer "}
    return {name: prefixes.get(name, "") + value for name, value in named.items() if value is not None}


def _part(text: str) -> str:
    return quote(text, safe="")


def _settings_path(kind: str, subject: str | None) -> str:
    return f"/{kind}" if subject is None else f"/{kind}/{_part(subject)}"


def _registered(content: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(**{name: content[name] for name in ("subject", "version", "id", "schema")})


def _result(response: "httpx.Response", url: str) -> Any:
    """What a response holds; raises RegistryError for a refusal, and for what is none of a registry's."""
    status = response.status_code
    try:
        content = response.json()
        if response.is_success:
            return content
        code, message = int(content["error_code"]), str(content["message"])
        # The one word of Confluent's registry, and of ours.
        told = f"{url} says {message}{_repair(status)}" if message == "Unauthorized" else message
        raise RegistryError(told, code=code, status=status)
    except (ValueError, KeyError, TypeError):
        if response.is_success:
            raise RegistryError(f"{url} answers, but not as a schema registry does", status=status) from None
        raise RegistryError(f"{url} answered HTTP {status}{_repair(status)}", status=status) from None


def _repair(status: int) -> str:
    return "; check basic.auth.user.info or bearer.auth.token of [registry]" if status == 401 else ""
