"""
A small client of any Confluent-compatible schema registry, for the command line, the pipelines and their tests.

It keeps no cache and no state but a connection pool; `httpx` is imported when the first client is made.
"""

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from fluvial.errors import ConfigError
from fluvial.properties import NO_PROPERTIES, Properties
from fluvial.registry.endpoint import USER_INFO, without_user
from fluvial.registry.errors import RegistryError

if TYPE_CHECKING:
    import ssl

    import httpx

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
NOT_FOUND = frozenset({40401, 40402, 40403})
LEVEL_NOT_SET = 40408
MODE_NOT_SET = 40409
HTTP_NOT_FOUND = 404
NO_OWNER = 40421
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
    Asks the registry at `url`; `auth` is a user name and password, which may also stand in the URL before an @.

    `properties` are those of `registry_properties`: who asks, by password or token, and the certificates of TLS.

    `url` may name several nodes of one registry, with commas between: when one cannot be reached the next is asked, and
    stays the one that is asked. A deletion that may have been heard is not said again, for it would not be found.

    Every method raises `RegistryError` when the registry refuses (its `code` says why) or does not answer.
    """

    def __init__(
        self,
        url: str,
        auth: tuple[str, str] | None = None,
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        import httpx

        pairs = [without_user(each.strip().rstrip("/")) for each in url.split(",")]
        self._urls = [each for each, _ in pairs]
        user_info = properties.get(USER_INFO)
        if auth is None and user_info is not None:
            name, _, password = user_info.partition(":")
            auth = (name, password)
        self._auth = auth or next((found for _, found in pairs if found is not None), None)
        self.url = ",".join(self._urls)
        self._http = httpx.Client(
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=CONNECT_SECONDS),
            headers={"Accept": MEDIA_TYPE, **_bearer(properties)},
            # Reading the system's certificates takes longer than all else here; plain HTTP has no use for them.
            verify=_tls(properties) if "https:" in self.url.lower() else False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        return list(self._call("GET", "/subjects", params={"deleted": str(deleted).lower()}))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The versions of a subject in ascending order."""
        path = f"/subjects/{_part(subject)}/versions"
        return list(self._call("GET", path, params={"deleted": str(deleted).lower()}))

    def version(self, subject: str, version: int | str, *, deleted: bool = False) -> RegisteredSchema:
        """One version of a subject, or its `latest`."""
        path = f"/subjects/{_part(subject)}/versions/{version}"
        return _registered(self._call("GET", path, params={"deleted": str(deleted).lower(), "format": "resolved"}))

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject."""
        return self.version(subject, "latest")

    def schema_by_id(self, schema_id: int) -> str:
        """The text of a schema, with what it refers to spelled out inside it."""
        return str(self._call("GET", f"/schemas/ids/{schema_id}", params={"format": "resolved"})["schema"])

    def versions_of_subject(self, subject: str) -> list[RegisteredSchema]:
        """Every version of a subject in ascending order; deleted ones as well, which data outlives."""
        return [self.version(subject, each, deleted=True) for each in self.versions(subject, deleted=True)]

    def register(self, subject: str, schema: str) -> int:
        """Register a schema and return its id; one that is already registered keeps its id and version."""
        return int(self._call("POST", f"/subjects/{_part(subject)}/versions", content={"schema": schema})["id"])

    def look_up(self, subject: str, schema: str) -> RegisteredSchema | None:
        """The version under which a schema is registered, or None."""
        try:
            return _registered(self._call("POST", f"/subjects/{_part(subject)}", content={"schema": schema}))
        except RegistryError as error:
            if error.code in NOT_FOUND:
                return None
            raise

    def check(self, subject: str, schema: str) -> list[str]:
        """Why a schema may not follow what is registered under `subject`; empty when it may."""
        path = f"/compatibility/subjects/{_part(subject)}/versions"
        answer = self._call("POST", path, params={"verbose": "true"}, content={"schema": schema})
        if answer["is_compatible"]:
            return []
        return [str(each) for each in answer.get("messages") or ["incompatible"]]

    def get_config(self, subject: str | None = None) -> str | None:
        """The compatibility level set for a subject (None when it follows the level for all), or the level for all."""
        try:
            return str(self._call("GET", _settings_path("config", subject))["compatibilityLevel"])
        except RegistryError as error:
            if error.code in {LEVEL_NOT_SET, *NOT_FOUND}:
                return None
            raise

    def set_config(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level of a subject, or of all."""
        self._call("PUT", _settings_path("config", subject), content={"compatibility": level})

    def document(self, subject: str, version: int | str, *, deleted: bool = False) -> dict[str, Any]:
        """All that the registry says of one version of a subject: `id`, `schema`, `references`, and so on."""
        path = f"/subjects/{_part(subject)}/versions/{version}"
        return dict(self._call("GET", path, params={"deleted": str(deleted).lower()}))

    def register_document(self, subject: str, document: Mapping[str, Any]) -> int:
        """Register a version as `document` gives it, with its id and version where it names them; return the id."""
        return int(self._call("POST", f"/subjects/{_part(subject)}/versions", content=document)["id"])

    def check_against(self, subject: str, version: int | str, document: Mapping[str, Any]) -> list[str]:
        """Why a schema may not follow one version of `subject` under its level; empty when it may."""
        path = f"/compatibility/subjects/{_part(subject)}/versions/{version}"
        answer = self._call("POST", path, params={"verbose": "true"}, content=document)
        return [] if answer["is_compatible"] else [str(each) for each in answer.get("messages") or ["incompatible"]]

    def level_in_scope(self, subject: str) -> str:
        """The compatibility level that holds for a subject."""
        path = _settings_path("config", subject)
        return str(self._call("GET", path, params={"defaultToGlobal": "true"})["compatibilityLevel"])

    def settings(self, subject: str | None = None) -> dict[str, Any] | None:
        """The settings of a subject, None where it has none of its own; or those for all."""
        try:
            return dict(self._call("GET", _settings_path("config", subject)))
        except RegistryError as error:
            if error.code in {LEVEL_NOT_SET, *NOT_FOUND}:
                return None
            raise

    def put_settings(self, subject: str | None, settings: Mapping[str, Any]) -> None:
        """Set what `settings` gave."""
        content = {("compatibility" if key == "compatibilityLevel" else key): value for key, value in settings.items()}
        self._call("PUT", _settings_path("config", subject), content=content)

    def mode(self, subject: str | None = None) -> str | None:
        """The mode set for a subject, None when it follows the mode for all; or that for all."""
        try:
            return str(self._call("GET", _settings_path("mode", subject))["mode"])
        except RegistryError as error:
            if error.code in {MODE_NOT_SET, *NOT_FOUND}:
                return None
            raise

    def set_mode(self, mode: str, subject: str | None = None, *, force: bool = False) -> None:
        """Set the mode of a subject, or of all."""
        params = {"force": "true"} if force else None
        self._call("PUT", _settings_path("mode", subject), params=params, content={"mode": mode})

    def delete_mode(self, subject: str) -> None:
        """Let a subject follow the mode for all."""
        self._call("DELETE", _settings_path("mode", subject))

    def delete_version(self, subject: str, version: int) -> None:
        """Hide one version of a subject."""
        self._call("DELETE", f"/subjects/{_part(subject)}/versions/{version}")

    def registrations(self, subject: str) -> list[dict[str, Any]] | None:
        """The versions with `at` (ms) and `by`; None where the registry does not keep that."""
        try:
            return list(self._call("GET", f"/fluvial/registrations/{_part(subject)}"))
        except RegistryError as error:
            if error.status == HTTP_NOT_FOUND and error.code not in NOT_FOUND:
                return None
            raise

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete every version of a subject and return their numbers; `permanent` comes after a plain deletion."""
        params = {"permanent": str(permanent).lower()}
        return list(self._call("DELETE", f"/subjects/{_part(subject)}", params=params))

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
                self._call("PUT", path, content=given)
            except RegistryError as error:
                if error.code != CHANGED_MEANWHILE:
                    raise
                self._call("PUT", path, content=given)
        except RegistryError as error:
            if error.status in {404, 405}:
                return False
            raise
        return True

    def give(self, subject: str, owner: str | None) -> dict[str, Any]:
        """Give a subject to a producer: to oneself what nobody owns, one's own to another; None gives it up."""
        return dict(self._call("PUT", f"/fluvial/owners/{_part(subject)}", content={"owner": owner}))

    def owner(self, subject: str) -> dict[str, Any] | None:
        """Who owns a subject, with `contact` and `history`; None for one that never had an owner."""
        try:
            return dict(self._call("GET", f"/fluvial/owners/{_part(subject)}"))
        except RegistryError as error:
            # A registry that knows of no owners has no such path.
            if error.code == NO_OWNER or error.status == HTTP_NOT_FOUND:
                return None
            raise

    def producer(self, name: str) -> dict[str, Any]:
        """A producer's `contact` and the `subjects` that it owns."""
        return dict(self._call("GET", f"/fluvial/producers/{_part(name)}"))

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: Mapping[str, Any] | None = None,
    ) -> Any:
        import httpx

        body = None if content is None else json.dumps(content).encode()
        headers = {} if content is None else {"Content-Type": MEDIA_TYPE}
        failure: Exception | None = None
        for url in list(self._urls):
            try:
                response = self._http.request(
                    method, url + path, params=params, content=body, headers=headers, auth=self._auth
                )
            except httpx.TransportError as error:
                failure = error
                if method == "DELETE" and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    break
                self._urls.append(self._urls.pop(0))
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                failure = error
                break
            if response.is_success:
                return _decoded(response, url)
            raise _refusal(response, url)
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
    found = {name: value for name, value in named.items() if value is not None}
    if "Authorization" in found:
        found["Authorization"] = f"Bearer {found['Authorization']}"
    return found


def _tls(properties: Properties) -> "ssl.SSLContext":
    """The certificates to trust and to show; raises ConfigError that names the file."""
    import ssl

    authority, chain = properties.get("ssl.ca.location"), properties.get("ssl.certificate.location")
    named = "ssl.ca.location"
    try:
        context = ssl.create_default_context(cafile=None if authority is None else Path(authority).expanduser())
        if chain is not None:
            named = "ssl.certificate.location"
            key = properties.get("ssl.key.location") or chain
            password = properties.get("ssl.key.password")
            context.load_cert_chain(Path(chain).expanduser(), Path(key).expanduser(), password or "")
    except OSError as error:  # SSLError is one
        raise ConfigError(
            f"{properties.where(named)}: {properties.get(named)} and its key: {error.strerror or error}; "
            "name PEM files that can be read"
        ) from error
    return context


def _part(text: str) -> str:
    return quote(text, safe="")


def _settings_path(kind: str, subject: str | None) -> str:
    return f"/{kind}" if subject is None else f"/{kind}/{_part(subject)}"


def _registered(content: Mapping[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(
        subject=content["subject"], version=content["version"], id=content["id"], schema=content["schema"]
    )


def _decoded(response: "httpx.Response", url: str) -> Any:
    try:
        return response.json()
    except ValueError:
        raise RegistryError(f"{url} answers, but not as a schema registry does", status=response.status_code) from None


def _refusal(response: "httpx.Response", url: str) -> RegistryError:
    try:
        content = response.json()
        return RegistryError(str(content["message"]), code=int(content["error_code"]), status=response.status_code)
    except (ValueError, KeyError, TypeError):
        repair = (
            "; check basic.auth.user.info or bearer.auth.token of [registry]" if response.status_code == 401 else ""
        )
        return RegistryError(f"{url} answered HTTP {response.status_code}{repair}", status=response.status_code)
