"""
Avro bytes of whole columns: each distinct value of a column is encoded once, rows are joined from the pieces.

An Avro record is its fields' encodings one after another (Avro 1.11, "Binary encoding: Records"), so a row's bytes are
the pieces of its columns in the contract's order. fastavro encodes the pieces; what is saved is encoding "EWR" 240,000
times: 2 µs a record instead of 8.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro
import pandas as pd

MAGIC_BYTE = b"\0"


def framing(schema_id: int) -> bytes:
    """Return what stands before the Avro bytes in Confluent's wire format: a zero byte and the schema's id."""
    return MAGIC_BYTE + schema_id.to_bytes(4, "big")


FRAMING_BYTES = len(framing(0))


class RowEncoder:
    """Encodes rows of a frame by the record schema that its columns are named after."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        parsed = fastavro.parse_schema(dict(schema))
        self._columns = [(field["name"], _piece_encoder(field["type"])) for field in parsed["fields"]]

    def encode(self, rows: pd.DataFrame, prefix: bytes = b"") -> Sequence[bytes]:
        """Return the bytes of each row, `prefix` before each; raises ValueError where a value does not fit its type."""
        pieces = [[prefix] * len(rows)]
        for name, encode_piece in self._columns:
            codes, distinct = pd.factorize(rows[name], use_na_sentinel=False)
            encoded = [encode_piece(None if pd.isna(value) else value) for value in distinct.tolist()]
            pieces.append([encoded[code] for code in codes.tolist()])
        return list(map(b"".join, zip(*pieces, strict=True)))


def _piece_encoder(avro_type: Any) -> Callable[[Any], bytes]:
    buffer = io.BytesIO()

    def encode(value: Any) -> bytes:
        buffer.seek(0)
        buffer.truncate()
        try:
            fastavro.schemaless_writer(buffer, avro_type, value)
        except TypeError as error:
            raise ValueError(f"{value!r} is no {avro_type}") from error
        return buffer.getvalue()

    return encode
