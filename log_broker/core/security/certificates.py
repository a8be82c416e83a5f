"""
The principal of a client's certificate: its distinguished name, by `ssl.principal.mapping.rules`.

The rules are Kafka's (KIP-371): `DEFAULT`, or `RULE:pattern/replacement/` with L or U behind it for small or capital
letters; several are separated by commas, and the first whose pattern is the whole name counts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

Rdn = Sequence[tuple[str, str]]

# RFC 2253, section 2.3, by the names that OpenSSL has for them.
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL = "1.2.840.113549.1.9.1"
_IA5_STRING = 0x16
_RULE = re.compile(r"\s*(DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?)\s*(?:,|$)", re.DOTALL)
_PARTS = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None  # None is DEFAULT
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        text = _REFERENCE.sub(lambda each: each[1] or (found[int(each[2])] or ""), self.replacement)
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """Rules in their order."""

    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `ssl.principal.mapping.rules`; raises ValueError that says what is wrong."""
        rules, position = [], 0
        while position < len(text):
            found = _RULE.match(text, position)
            if found is None:
                raise ValueError(f"has no rule at {text[position:]!r}: write DEFAULT or RULE:pattern/replacement/[LU]")
            rules.append(_rule(found[1]))
            position = found.end()
        return cls(tuple(rules) or (_Rule(None),))

    def apply(self, name: str) -> str | None:
        """Return the principal's name, None where no rule fits."""
        return next((made for rule in self.rules if (made := rule.apply(name)) is not None), None)


def _rule(text: str) -> _Rule:
    if text == "DEFAULT":
        return _Rule(None)
    parts = _PARTS.fullmatch(text)
    assert parts is not None, "it was found by the same pattern"
    try:
        pattern = re.compile(parts[1].replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"has a pattern that cannot be read, {parts[1]!r}: {error}") from error
    referred = max((int(each[2]) for each in _REFERENCE.finditer(parts[2]) if each[2]), default=0)
    if referred > pattern.groups:
        raise ValueError(f"refers to group {referred} of {parts[1]!r}, which has {pattern.groups}")
    return _Rule(pattern, parts[2], parts[3])


def distinguished_name(subject: Iterable[Rdn]) -> str:
    """
    Return a subject as RFC 2253 writes it, which is how Java names it: the last part first.

    `subject` is as `ssl` gives it, the parts in the order of the certificate.
    """
    return ",".join("+".join(_attribute(*each) for each in rdn) for rdn in reversed(list(subject)))


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":  # which RFC 2253 has no name for
        content = value.encode()
        if len(content) < 0x80:
            return f"{_EMAIL}=#{bytes((_IA5_STRING, len(content))).hex()}{content.hex()}"
    return f"{_SHORT.get(name, name)}={_escaped(value)}"


def _escaped(value: str) -> str:
    text = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if text[:1] in {"#", " "}:
        text = "\\" + text
    if len(value) > 1 and value.endswith(" "):
        text = text[:-1] + "\\ "
    return text
