"""Parsed schemas, kept so that comparing with earlier versions and decoding records do not parse them again."""

from collections import OrderedDict
from threading import Lock

from fluvial.registry import errors
from fluvial.registry.avro_parse import AvroSyntaxError, Parsed, parse
from fluvial.registry.records import Body, Reference
from fluvial.registry.state import RegistryState

PARSED_MAX = 1_000
REFERENCED_CHARACTERS_MAX = 4 * 1024 * 1024


class Library:
    """The last thousand parsed schemas. Used from several threads at once."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[tuple[str, tuple[str, ...]], Parsed] = OrderedDict()
        self._lock = Lock()

    def parse(
        self, state: RegistryState, schema: str, references: tuple[Reference, ...], *, normalize: bool = False
    ) -> Parsed:
        """Parse a schema as a request brings it. Raises `RefusedError` for what is not a schema."""
        try:
            texts = tuple(state.resolve(references))
        except LookupError as error:
            raise errors.invalid_schema(str(error.args[0])) from None
        if sum(map(len, texts)) > REFERENCED_CHARACTERS_MAX:
            raise errors.too_large(f"The references hold more than {REFERENCED_CHARACTERS_MAX} characters")
        try:
            parsed = parse(schema, references=texts, normalize=normalize)
        except AvroSyntaxError as error:
            raise errors.invalid_schema(str(error)) from None
        self._keep((parsed.text, texts), parsed)
        return parsed

    def parsed(self, state: RegistryState, body: Body) -> Parsed:
        """Parse a schema that is registered or about to be."""
        key = (body.schema, tuple(state.resolve(body.references)))
        with self._lock:
            found = self._parsed.get(key)
            if found is not None:
                self._parsed.move_to_end(key)
                return found
        return self.parse(state, body.schema, body.references)

    def _keep(self, key: tuple[str, tuple[str, ...]], parsed: Parsed) -> None:
        with self._lock:
            self._parsed[key] = parsed
            while len(self._parsed) > PARSED_MAX:
                self._parsed.popitem(last=False)
