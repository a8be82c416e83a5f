"""The description of a local platform on disk."""

import json
from pathlib import Path

import pytest

from fluvial.errors import ConfigError
from fluvial.local.state import Platform, is_loopback


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    platform = Platform.planned(brokers=3, port=7000, registry_port=8000)
    platform.save(tmp_path)
    assert Platform.load(tmp_path) == platform
    assert [path.name for path in tmp_path.iterdir()] == ["platform.json"]


def test_the_settings_of_all_nodes_are_kept(tmp_path: Path) -> None:
    platform = Platform.planned(brokers=2, port=7000, registry_port=8000, settings={"num.partitions": "2"})
    platform.with_layout(brokers=3, port=7000, registry_port=8000).save(tmp_path)
    found = Platform.load(tmp_path)
    assert found is not None
    assert (len(found.nodes), found.settings) == (3, {"num.partitions": "2"})
    described = json.loads((tmp_path / "platform.json").read_text())
    del described["settings"]
    (tmp_path / "platform.json").write_text(json.dumps(described))
    before = Platform.load(tmp_path)
    assert before is not None
    assert before.settings == {}
    (tmp_path / "platform.json").write_text(json.dumps({**described, "settings": ["num.partitions"]}))
    with pytest.raises(ConfigError, match="not a platform's description"):
        Platform.load(tmp_path)


def test_every_node_serves_the_registry() -> None:
    platform = Platform.planned(brokers=3, port=7000, registry_port=8000)
    assert [(node.id, node.port, node.registry_port) for node in platform.nodes] == [
        (0, 7000, 8000),
        (1, 7001, 8001),
        (2, 7002, 8002),
    ]
    assert platform.registry_url == "http://127.0.0.1:8000,http://127.0.0.1:8001,http://127.0.0.1:8002"
    rest = platform.without(0)
    assert rest.registry_url == "http://127.0.0.1:8001,http://127.0.0.1:8002"
    assert (rest.port, rest.registry_port) == (7000, 8000)


def test_a_platform_of_one_registry_keeps_it_until_more_are_asked_for(tmp_path: Path) -> None:
    Platform.planned(brokers=3, port=7000, registry_port=8000).save(tmp_path)
    described = json.loads((tmp_path / "platform.json").read_text())
    for node in described["nodes"][1:]:
        node["registry_port"] = None
    (tmp_path / "platform.json").write_text(json.dumps(described))
    old = Platform.load(tmp_path)
    assert old is not None
    assert old.registry_url == "http://127.0.0.1:8000"
    kept = old.with_layout(brokers=4, port=7000, registry_port=8000)
    assert [node.registry_port for node in kept.nodes] == [8000, None, None, 8003]
    asked = old.with_layout(brokers=3, port=7000, registry_port=8000, registry_on=(0, 2))
    assert [node.registry_port for node in asked.nodes] == [8000, None, 8002]


def test_metrics_are_served_from_a_port_on_or_not_at_all(tmp_path: Path) -> None:
    platform = Platform.planned(brokers=2, port=7000, registry_port=8000, metrics_port=9000)
    assert [node.metrics_url for node in platform.nodes] == [
        "http://127.0.0.1:9000/metrics",
        "http://127.0.0.1:9001/metrics",
    ]
    platform.save(tmp_path)
    assert Platform.load(tmp_path) == platform
    assert platform.with_layout(brokers=2, port=7000, registry_port=8000).metrics_port is None


def test_a_description_from_before_metrics_is_read(tmp_path: Path) -> None:
    Platform.planned(brokers=1, port=7000, registry_port=8000).save(tmp_path)
    described = json.loads((tmp_path / "platform.json").read_text())
    del described["nodes"][0]["metrics_port"]
    (tmp_path / "platform.json").write_text(json.dumps(described))
    loaded = Platform.load(tmp_path)
    assert loaded is not None
    assert loaded.metrics_port is None


def test_a_cluster_keeps_its_id_when_its_layout_changes() -> None:
    platform = Platform.planned(brokers=1, port=7000, registry_port=8000)
    grown = platform.with_layout(brokers=2, port=7100, registry_port=8100)
    assert grown.cluster_id == platform.cluster_id
    assert grown.bootstrap_servers == "127.0.0.1:7100,127.0.0.1:7101"
    assert grown.nodes[0].data_dir == platform.nodes[0].data_dir


def test_ids_are_new_each_time_and_are_no_options() -> None:
    ids = {Platform.planned(brokers=1, port=1, registry_port=2).cluster_id for _ in range(300)}
    assert len(ids) == 300
    assert {len(each) for each in ids} == {22}
    assert not [each for each in ids if each.startswith("-")]


def test_no_folder_is_no_platform(tmp_path: Path) -> None:
    assert Platform.load(tmp_path / "none") is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cluster_id": "x", "nodes": []}', '{"cluster_id": "x", "nodes": [{}]}']
)
def test_a_damaged_description_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "platform.json").write_text(text)
    with pytest.raises(ConfigError, match=r"platform\.json"):
        Platform.load(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost"])
def test_a_loopback_address_is_reached_from_its_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "kafka-1", "127.0.0.1.example"])
def test_other_addresses_are_open_to_the_network(host: str) -> None:
    assert not is_loopback(host)
