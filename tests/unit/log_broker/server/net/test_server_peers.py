"""Links between nodes."""

import asyncio

import pytest

from log_broker.errors import BrokerError
from log_broker.server.net.peers import PeerLink

REQUEST = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"


@pytest.mark.parametrize("alone", [True, False])
async def test_a_request_that_goes_alone_shares_no_connection_with_an_unanswered_one(alone: bool) -> None:
    """A leader of the quorum that stood still reads all that has come: two fetches of one connection would tell it
    that its answer to the first had arrived."""
    came: list[int] = []
    both = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(writers)
        writers.append(writer)
        while await reader.read(4 + len(REQUEST)):
            came.append(number)
            if len(came) == 2:
                both.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        link = PeerLink(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        first = asyncio.create_task(link.ask_raw(REQUEST, alone=alone))
        while not came:  # noqa: ASYNC110 the server notes what came
            await asyncio.sleep(0.001)
        second = asyncio.create_task(link.ask_raw(REQUEST, alone=alone))
        await both.wait()
        assert came == [0, int(alone)]
        link.end()
        for asked in (first, second):
            with pytest.raises(BrokerError):
                await asked
