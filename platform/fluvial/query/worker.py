"""
The process of the query engine: Sail, walled in, and what hands statements to it.

It is started by :mod:`fluvial.query.sail` as `python -m fluvial.query.worker`, with JSON in its first argument: the
folders that it may read and one that it may write in. Statements come on stdin, answers leave on stdout.

Sail is asked over Arrow Flight SQL (CommandStatementQuery of FlightSql.proto), which takes nothing but pyarrow; its
Spark Connect door takes PySpark, half a second and 80 MB more, and is opened for who asks with DataFrames.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from fluvial.query import jail
from fluvial.query.frames import Frame, FrameWriter, own_pipes, received, write_frame, write_json
from fluvial.query.relay import relay

_STATEMENT_QUERY = "type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_BUFFER_BYTES = 1 << 18


class Sail:
    """
    Sail in this process, and a client of it.
    """

    def __init__(self) -> None:
        from pyarrow import flight
        from pysail.flight import FlightSqlServer

        self._server = FlightSqlServer("127.0.0.1", 0)
        self._server.start(background=True)
        host, port = self._server.listening_address
        self._flight = flight
        self._client = flight.connect(f"grpc://{host}:{port}")
        self._connect: Any = None

    def speak_connect(self, path: Path) -> None:
        """
        Let whoever may open a socket at a path ask by Spark Connect.
        """
        from pysail.spark import SparkConnectServer

        self._connect = SparkConnectServer("127.0.0.1", 0)
        self._connect.start(background=True)
        relay(path, self._connect.listening_address)

    def ask(self, statement: str, *, rows_max: int | None, out: BinaryIO) -> None:
        """
        Write the answer to a statement as a stream of Arrow, up to the batch in which it has `rows_max` rows.
        """
        import pyarrow as pa

        descriptor = self._flight.FlightDescriptor.for_command(_command(statement))
        info = self._client.get_flight_info(descriptor)
        readers = [] if rows_max == 0 else [self._client.do_get(each.ticket) for each in info.endpoints]
        # What the plan knew of its columns may be less than what the batches say, such as whether one has nulls.
        with pa.ipc.new_stream(out, readers[0].schema if readers else info.schema) as writer:
            written = 0
            for reader in readers:
                for chunk in reader:
                    if chunk.data is not None:
                        writer.write_batch(chunk.data)
                        written += chunk.data.num_rows
                    if rows_max is not None and written >= rows_max:
                        reader.cancel()
                        break


def _command(statement: str) -> bytes:
    from google.protobuf.any_pb2 import Any as AnyMessage

    text = statement.encode()
    # The message has one field, the query: number 1, of a length and its bytes.
    return bytes(AnyMessage(type_url=_STATEMENT_QUERY, value=b"\x0a" + _varint(len(text)) + text).SerializeToString())


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def main() -> None:
    """
    Answer statements until there are no more.
    """
    # What a terminal sends to all of its processes is the parent's to judge.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = json.loads(sys.argv[1])
    source, out = own_pipes()
    walls = jail.enter([Path(path) for path in given["readable"]], Path(given["scratch"]))
    os.environ["TMPDIR"] = given["scratch"]
    sail = Sail()
    write_json(out, Frame.READY, {"network": walls.network, "files": walls.files})
    for kind, body in received(source):
        asked = json.loads(body)
        if kind is Frame.CONNECT:
            _connect(sail, asked["path"], out)
        else:
            _answer(sail, asked, out)
    # Sail's own threads are not waited for: nothing of theirs is kept.
    os._exit(0)


def _answer(sail: Sail, asked: dict[str, Any], out: BinaryIO) -> None:
    import io

    import pyarrow as pa

    frames = FrameWriter(out)
    answer = io.BufferedWriter(frames, _BUFFER_BYTES)
    try:
        sail.ask(asked["statement"], rows_max=asked["rows_max"], out=answer)
        answer.flush()
    except BrokenPipeError:
        os._exit(0)
    # Sail's refusals come as several classes of Arrow's, some of them errors of the system's and of keys.
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, NotImplementedError, RuntimeError) as error:
        frames.give_up()
        write_json(out, Frame.REFUSED, {"message": str(error)})
        return
    write_frame(out, Frame.END)


def _connect(sail: Sail, path: str, out: BinaryIO) -> None:
    try:
        sail.speak_connect(Path(path))
    except (OSError, RuntimeError) as error:
        write_json(out, Frame.REFUSED, {"message": str(error)})
        return
    write_frame(out, Frame.END)


if __name__ == "__main__":
    main()
