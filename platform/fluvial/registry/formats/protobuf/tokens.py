"""The words of .proto text, one after the other."""

import re
from typing import NamedTuple

from fluvial.registry.formats.schema_kind import SchemaSyntaxError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n\f\v]+ | //[^\n]* | /\*.*?\*/)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<real>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]? | [0-9]+[eE][+-]?[0-9]+[fF]?)
    | (?P<whole>0[xX][0-9a-fA-F]+ | [0-9]+)
    | (?P<text>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
    | (?P<mark>[;,.=:<>(){}\[\]/+-])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|(?P<octal>[0-7]{1,3})|u(?P<u4>[0-9a-fA-F]{4})|U(?P<u8>[0-9a-fA-F]{8})|(?P<one>.))",
    re.DOTALL,
)
_ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_NAMED = {chr(code): f"\\{name}" for name, code in _ESCAPES.items()} | {each: f"\\{each}" for each in "\"\\'"}
TOKENS_MAX = 300_000


class Token(NamedTuple):
    """`kind` is `word`, `real`, `whole`, `text`, `mark`, or `end` behind the last."""

    kind: str
    text: str
    offset: int


class Tokens:
    """Reads on, one token ahead. Its errors name the line."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._found = _split(source)
        self._place = 0

    @property
    def next(self) -> Token:
        """The token that comes, which stays where it is."""
        return self._found[self._place]

    @property
    def after_next(self) -> Token:
        """The one behind it."""
        return self._found[min(self._place + 1, len(self._found) - 1)]

    def take(self) -> Token:
        """Go past the next token."""
        found = self._found[self._place]
        if found.kind != "end":
            self._place += 1
        return found

    def at(self, text: str) -> bool:
        """Whether the next token is this word or mark."""
        return self.next.text == text and self.next.kind in {"word", "mark"}

    def skip(self, text: str) -> bool:
        """Go past this word or mark if it comes next."""
        if self.at(text):
            self.take()
            return True
        return False

    def expect(self, text: str) -> None:
        """Go past this word or mark, which has to come next."""
        if not self.skip(text):
            raise self.error(f"expected `{text}`")

    def word(self, what: str) -> str:
        """A name without dots."""
        if self.next.kind != "word":
            raise self.error(f"expected {what}")
        return self.take().text

    def name(self, what: str) -> str:
        """A name with dots, perhaps one at the front."""
        parts = ["."] if self.skip(".") else []
        parts.append(self.word(what))
        while self.skip("."):
            parts += [".", self.word(what)]
        return "".join(parts)

    def whole(self, what: str) -> int:
        """A whole number, perhaps below 0."""
        negative = self.skip("-")
        if self.next.kind != "whole" or len(self.next.text) > 40:
            raise self.error(f"expected {what}")
        number = whole_value(self.take().text)
        return -number if negative else number

    def strings(self, what: str) -> bytes:
        """A string; several in a row are one."""
        if self.next.kind != "text":
            raise self.error(f"expected {what}")
        found: list[bytes] = []
        while self.next.kind == "text":
            found.append(unescaped(self.take().text[1:-1]))
        return b"".join(found)

    def string(self, what: str) -> str:
        """A string that is text."""
        first = self.next
        try:
            return self.strings(what).decode("utf-8")
        except UnicodeDecodeError:
            raise SchemaSyntaxError(f"line {self._line_of(first)}: {what} is not UTF-8") from None

    def error(self, what: str) -> SchemaSyntaxError:
        """What to raise when something else should have come next."""
        found = "the end" if self.next.kind == "end" else f"`{self.next.text[:60]}`"
        return SchemaSyntaxError(f"line {self._line_of(self.next)}: {what}, found {found}")

    def _line_of(self, token: Token) -> int:
        """Count the lines up to a token; it takes as long as the text before it."""
        return self._source.count("\n", 0, token.offset) + 1


def _split(source: str) -> list[Token]:
    found: list[Token] = []
    place = 0
    for match in _TOKEN.finditer(source):
        if match.start() != place:
            break
        place = match.end()
        kind = match.lastgroup
        if kind is not None and kind != "space":
            found.append(Token(kind, match.group(), match.start()))
            if len(found) > TOKENS_MAX:
                raise SchemaSyntaxError(f"more than {TOKENS_MAX} words")
    if place != len(source):
        line = source.count("\n", 0, place) + 1
        raise SchemaSyntaxError(f"line {line}: {source[place : place + 20]!r} is not .proto text")
    found.append(Token("end", "", place))
    return found


def whole_value(text: str) -> int:
    """The number that a decimal, hexadecimal or octal literal stands for."""
    if text[:2] in {"0x", "0X"}:
        return int(text, 16)
    try:
        return int(text, 8) if text.startswith("0") else int(text)
    except ValueError:
        raise SchemaSyntaxError(f"{text[:60]} is not a number") from None


def unescaped(text: str) -> bytes:
    """The bytes that a string literal stands for."""
    if "\\" not in text:
        return text.encode("utf-8", "surrogatepass")
    found, place = b"", 0
    pieces: list[bytes] = []
    for match in _ESCAPE.finditer(text):
        pieces.append(text[place : match.start()].encode("utf-8", "surrogatepass"))
        place = match.end()
        if match["hex"] or match["octal"]:
            pieces.append(bytes([int(match["hex"] or match["octal"], 16 if match["hex"] else 8) & 0xFF]))
        elif match["u4"] or match["u8"]:
            code = int(match["u4"] or match["u8"], 16)
            pieces.append(chr(min(code, 0x10FFFF)).encode("utf-8", "surrogatepass"))
        else:
            one = match["one"]
            pieces.append(bytes([_ESCAPES[one]]) if one in _ESCAPES else one.encode("utf-8", "surrogatepass"))
    pieces.append(text[place:].encode("utf-8", "surrogatepass"))
    return found.join(pieces)


def escaped(value: bytes) -> str:
    """A string literal's inside, text as it is and other bytes by number."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(chr(each) if 32 <= each < 127 and each not in b"\"\\'" else f"\\{each:03o}" for each in value)
    return "".join(_escaped_character(each) for each in text)


def _escaped_character(each: str) -> str:
    if each in _NAMED:
        return _NAMED[each]
    return f"\\{ord(each):03o}" if ord(each) < 32 or ord(each) == 127 else each
