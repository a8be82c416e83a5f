"""Parsed schemas, kept so that comparing with earlier versions and decoding records do not parse them again."""

from collections import OrderedDict
from threading import Lock

from fluvial.registry import errors
from fluvial.registry.formats.kinds import kind_of
from fluvial.registry.formats.schema_kind import Parsed, SchemaSyntaxError, TooComplexError
from fluvial.registry.model.names import DEFAULT_CONTEXT
from fluvial.registry.model.records import Body, Reference
from fluvial.registry.model.state import RegistryState

PARSED_MAX = 1_000
PARSED_BYTES_MAX = 96 * 1024 * 1024
FAULT_CHARACTERS_MAX = 1_000
REFERENCED_CHARACTERS_MAX = 4 * 1024 * 1024

# The type, the text, the names and texts it refers to, and whether it is normalized.
Key = tuple[str, str, tuple[tuple[str, str], ...], bool]


class Library:
    """The last parsed schemas, under their texts as sent and as stored. Used from several threads at once."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[Key, Parsed] = OrderedDict()
        self._bytes_held = 0
        self._lock = Lock()

    def parse(
        self,
        state: RegistryState,
        schema: str,
        references: tuple[Reference, ...],
        *,
        schema_type: str,
        context: str = DEFAULT_CONTEXT,
        normalize: bool = False,
    ) -> Parsed:
        """Parse a schema as a request brings it to `context`. Raises `RefusedError` for what is not a schema."""
        kind = kind_of(schema_type)
        try:
            texts = state.resolve(references, context)
        except LookupError as error:
            raise errors.invalid_schema(str(error.args[0]), schema_type=schema_type) from None
        except TooComplexError as error:
            raise errors.invalid_schema(str(error), schema_type=schema_type) from None
        if sum(map(len, texts.values())) > REFERENCED_CHARACTERS_MAX:
            raise errors.too_large(f"The references hold more than {REFERENCED_CHARACTERS_MAX} characters")
        known = self._known((schema_type, schema, tuple(texts.items()), normalize))
        if known is not None:
            return known
        try:
            parsed = kind.parse(schema, references=texts, normalize=normalize)
        except (SchemaSyntaxError, TooComplexError) as error:
            raise errors.invalid_schema(str(error)[:FAULT_CHARACTERS_MAX], schema_type=schema_type) from None
        for text, normalized in {(schema, normalize), (parsed.text, False)}:
            self._keep((schema_type, text, tuple(texts.items()), normalized), parsed)
        return parsed

    def parsed(self, state: RegistryState, body: Body, context: str = DEFAULT_CONTEXT) -> Parsed:
        """Parse a schema that is registered in `context` or about to be."""
        return self.parse(state, body.schema, body.references, schema_type=body.schema_type, context=context)

    def _known(self, key: Key) -> Parsed | None:
        with self._lock:
            found = self._parsed.get(key)
            if found is not None:
                self._parsed.move_to_end(key)
            return found

    def _keep(self, key: Key, parsed: Parsed) -> None:
        with self._lock:
            if key not in self._parsed:
                self._bytes_held += parsed.bytes_held
            self._parsed[key] = parsed
            while len(self._parsed) > PARSED_MAX or self._bytes_held > PARSED_BYTES_MAX:
                _, oldest = self._parsed.popitem(last=False)
                self._bytes_held -= oldest.bytes_held
