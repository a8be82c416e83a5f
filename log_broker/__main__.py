"""
`python -m log_broker`: one broker node in the foreground; SIGTERM or SIGINT stops it in order.

`python -m log_broker sim …` runs the simulation instead.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from log_broker.config.arguments import add_quorum_arguments, quorum_settings, set_settings
from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.records import UnknownMetadataRecordError
from log_broker.errors import BrokerError
from log_broker.server.net.exposure import check_exposure, readable_by_others
from log_broker.server.node import Node
from log_broker.server.process import memory as process_memory
from log_broker.server.process.event_loop import loop_factory
from log_broker.server.process.machine import BindError
from log_broker.storage.data_directory import DataDirectoryError


def main(arguments: list[str] | None = None) -> int:
    """Run a node until it is told to stop; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["sim"]:
        from log_broker.sim import cli

        return cli.main(arguments[1:])
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        config = BrokerConfig(
            data_dir=options.data_dir,
            node_id=options.node_id,
            host=options.host,
            port=options.port,
            advertised_host=options.advertised_host,
            cluster_id=options.cluster_id,
        ).with_settings(_settings(options))
        for line in readable_by_others(config, options.config):
            sys.stderr.write(f"log_broker: {line}\n")
        _run(config, check_exposure(config, allow_plaintext=options.allow_plaintext))
    except (BrokerError, BindError, DataDirectoryError, UnknownMetadataRecordError, OSError) as error:
        sys.stderr.write(f"log_broker: {error}\n")
        return 1
    return 0


def _run(config: BrokerConfig, exposed: Sequence[str]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(config, exposed))


async def serve(config: BrokerConfig, exposed: Sequence[str] = ()) -> None:
    """
    Run a node until SIGTERM or SIGINT; one line on stdout says when it serves, and where.

    `exposed` are its addresses that are open to the network.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = Node(config)
    await node.start()
    for host in exposed:
        sys.stderr.write(
            f"log_broker: open to the network: whoever reaches {host} can read, write and "
            "administer everything there, for nothing asks who they are\n"
        )
    process_memory.settle()
    sys.stdout.write(f"listening on {node.advertised_host}:{node.port}\n")
    sys.stdout.flush()
    await stopping.wait()
    await node.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m log_broker",
        description="Run one log broker node.",
        epilog="python -m log_broker sim --help: the simulation",
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of this node's logs")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9092, help="port to listen on; 0 takes any free one")
    parser.add_argument("--advertised-host", help="address that clients are told, if it differs")
    parser.add_argument("--node-id", type=int, default=0, help="this node's number in its cluster")
    parser.add_argument("--cluster-id", help="refuse to join or serve another cluster")
    add_quorum_arguments(parser)
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def _settings(options: argparse.Namespace) -> dict[str, str]:
    try:
        return {**set_settings(options), **quorum_settings(options)}
    except (BrokerError, ValueError) as error:
        raise SystemExit(f"log_broker: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
