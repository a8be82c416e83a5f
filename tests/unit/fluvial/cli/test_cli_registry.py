"""The schema registry of a local platform of three nodes, of which one is killed."""

import json
import os
import signal

import pytest
from fluvial_command import Cli

from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError


def avro(name: str) -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": "at", "type": "long"}]})


def test_every_node_registers_also_when_the_one_that_writes_is_killed(cli: Cli) -> None:
    cli.up("--brokers", "3")
    nodes = cli.status()["nodes"]
    urls = {node["id"]: node["registry_url"] for node in nodes}
    assert urls == {number: f"http://127.0.0.1:{cli.registry_port + number}" for number in range(3)}
    ids = {}
    for number, url in urls.items():
        with RegistryClient(url) as client:
            ids[number] = client.register(f"by-{number}", avro(f"By{number}"))
            assert {client.register("shared", avro("Shared")) for _ in range(2)} == {client.latest("shared").id}
    assert len(set(ids.values())) == 3

    [partition] = json.loads(cli.ok("topic", "describe", "_schemas", "--json"))["partitions"]
    writer = partition["leader"]
    os.kill(next(node["pid"] for node in nodes if node["id"] == writer), signal.SIGKILL)
    shared = set()
    for number in sorted(urls.keys() - {writer}):
        with RegistryClient(urls[number]) as client:
            client.register(f"after-{number}", avro(f"After{number}"))
            assert {client.register(f"by-{each}", avro(f"By{each}")) for each in ids} == set(ids.values())
            shared.add(client.register("shared", avro("Shared")))
    assert len(shared) == 1
    with RegistryClient(urls[writer]) as client, pytest.raises(RegistryError, match="does not answer"):
        client.subjects()
    # The command knows all of them, and asks whoever is there.
    listed = {each["subject"] for each in json.loads(cli.ok("schema", "list", "--json"))}
    assert listed == {"shared", *(f"by-{each}" for each in ids), *(f"after-{each}" for each in urls.keys() - {writer})}
