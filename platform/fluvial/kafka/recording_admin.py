"""An admin client that keeps what its connections complain of, and what such a complaint means for who set it up."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

COMPLAINTS_MAX = 20


class RecordingAdmin(AdminClient):  # type: ignore[misc]
    """
    An admin client; `complaints` are the errors of its connections, the newest last, as of the last `poll`.

    librdkafka goes on trying whatever a broker says, a wrong password included: only here is it heard why.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self.complaints: deque[KafkaError] = deque(maxlen=COMPLAINTS_MAX)
        super().__init__({**conf, "error_cb": self.complaints.append})

    def heard(self) -> KafkaError | None:
        """The newest complaint that says what is wrong with how the cluster is talked to."""
        self.poll(0)
        meaningful = [each for each in self.complaints if meaning(each) is not None]
        return meaningful[-1] if meaningful else None

    def is_hung_up_on(self) -> bool:
        """Whether connections were made and ended at once, and nothing else was heard."""
        errors = [each.str() for each in self.complaints if each.code() != KafkaError._ALL_BROKERS_DOWN]
        return bool(self.complaints) and all(any(phrase in each for phrase in _ENDED) for each in errors)


def is_final(error: KafkaError) -> bool:
    """Whether trying again cannot help: the sign-in or a certificate was refused, or TLS found no agreement."""
    if error.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL}:
        return True
    return any(phrase in error.str() for phrase in (*_NOT_TRUSTED, *_NO_CERTIFICATE))


def meaning(error: KafkaError) -> str | None:
    """What an error of a connection says of its settings, and the repair; None where it says nothing of them."""
    text = error.str()
    for phrases, says in _MEANINGS:
        if any(phrase in text for phrase in phrases):
            return f"{says} ({_core(text)})"
    if error.code() == KafkaError._AUTHENTICATION:
        return f"rejects the credentials: check sasl.username, sasl.password and sasl.mechanism ({_core(text)})"
    if error.code() == KafkaError._SSL:
        return f"could not agree on TLS with us: check security.protocol and the ssl. properties ({_core(text)})"
    return None


def _core(text: str) -> str:
    """The middle of librdkafka's line: no address before it, no times and no advice behind."""
    said = text.partition("/bootstrap: ")[2] or text
    return said.partition(" (after ")[0].partition(", verify that ")[0].strip()


_NOT_TRUSTED = ("certificate verify failed", "certificate could not be verified")
_NO_CERTIFICATE = ("certificate required", "bad certificate", "unknown ca", "certificate unknown")
_ENDED = ("Disconnected", "reset by peer", "Invalid response size")
WANTS_TLS = "hangs up on plain text, as a TLS listener does: set security.protocol to SSL or SASL_SSL"
_MEANINGS = (
    (
        _NOT_TRUSTED,
        "has a certificate that is not trusted, or is for another host: name the PEM file of its CA in ssl.ca.location",
    ),
    (
        ("PLAINTEXT broker listener", "wrong version number", "packet length too long", "record layer failure"),
        "speaks no TLS on this port: name the port of its TLS listener, or fix security.protocol",
    ),
    (
        _NO_CERTIFICATE,
        "requires a client certificate that it trusts: check ssl.certificate.location and ssl.key.location",
    ),
    (
        ("connecting to a SSL listener", "incorrect security.protocol"),
        WANTS_TLS,
    ),
    (
        ("might require SASL",),
        "hangs up, as one does that wants a sign-in: set security.protocol to SASL_SSL, with sasl.mechanism, "
        "sasl.username and sasl.password",
    ),
)
