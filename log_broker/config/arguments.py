"""The flags by which a node is told its place in the cluster, for every command line that runs one."""

import argparse
from pathlib import Path

from log_broker.config.properties import read_settings
from log_broker.config.security import is_secret


def add_quorum_arguments(parser: argparse.ArgumentParser) -> None:
    """
    Add the flags of a node's roles, voters and rack, and `--config` and `--set` for any other setting.

    `--allow-plaintext` is for `check_exposure`.
    """
    parser.add_argument("--process-roles", metavar="ROLES", help="broker, controller or both (broker,controller)")
    parser.add_argument(
        "--controller-quorum-voters",
        metavar="ID@HOST:PORT,…",
        help="the nodes that elect the controller; without any this node is alone",
    )
    parser.add_argument(
        "--controller-quorum-bootstrap-servers",
        metavar="HOST:PORT,…",
        help="where a node that is no voter asks for the controller",
    )
    parser.add_argument("--broker-rack", metavar="RACK", help="where this broker stands")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a file of settings as Kafka's server.properties, the place for those that are secret",
    )
    parser.add_argument(
        "--allow-plaintext",
        action="store_true",
        help="listen beyond this machine although nobody is asked there who they are",
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="a broker setting by Kafka's name; repeatable"
    )


def quorum_settings(words: argparse.Namespace) -> dict[str, str]:
    """The settings that the flags beside `--set` stand for, by Kafka's names."""
    flags = {
        "process.roles": words.process_roles,
        "controller.quorum.voters": words.controller_quorum_voters,
        "controller.quorum.bootstrap.servers": words.controller_quorum_bootstrap_servers,
        "broker.rack": words.broker_rack,
    }
    return {name: text for name, text in flags.items() if text is not None}


def set_settings(words: argparse.Namespace) -> dict[str, str]:
    """
    The settings of `--config` and, over them, those given by `--set`.

    Raises ValueError for one that is not KEY=VALUE, or a secret, and BrokerError for a file that cannot be read.
    """
    settings = {} if words.config is None else read_settings(words.config)
    for text in words.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes KEY=VALUE, not {text!r}")
        if is_secret(name):
            raise ValueError(
                f"{name} is secret, and others can see this command's words: write it into a file, for --config FILE"
            )
        settings[name] = value
    return settings
