"""Contracts on disk, and what the registry makes of them."""

import json

import pytest

from fluvial.registry.client import RegistryClient
from fluvial.registry.contracts import ContractError, check_all, load_contracts, register_all
from fluvial.registry.errors import RegistryError

WEATHER = '{"type": "record", "name": "Weather", "fields": [{"name": "temp", "type": "double"}]}'
OWNER = """
producer = "weather_service"
contact = "Weather desk <weather@example.org>"
subjects = ["weather-value"]
topics = ["weather"]
"""


@pytest.fixture
def schemas(tmp_path):
    folder = tmp_path / "schemas" / "weather_service"
    folder.mkdir(parents=True)
    (folder / "owner.toml").write_text(OWNER)
    (folder / "weather.avsc").write_text(WEATHER)
    return tmp_path / "schemas"


@pytest.fixture
def client(registry_server):
    with RegistryClient(registry_server.url) as client:
        yield client


def test_a_contract(schemas) -> None:
    (contract,) = load_contracts(schemas)
    assert contract.producer == "weather_service"
    assert contract.email == "weather@example.org"
    assert (contract.subject, contract.topic, contract.topics) == ("weather-value", "weather", ("weather",))
    assert contract.compatibility == "BACKWARD"
    assert contract.schema == json.loads(WEATHER)
    assert contract.path == schemas / "weather_service" / "weather.avsc"
    assert not contract.is_key


def test_what_a_producer_says_of_all_that_it_writes(schemas) -> None:
    path = schemas / "weather_service" / "owner.toml"
    path.write_text(f'{OWNER}tags = {{domain = "weather"}}\nlinks = {{runbook = "https://wiki.example/weather"}}\n')
    (contract,) = load_contracts(schemas)
    assert (contract.tags, contract.links) == ({"domain": "weather"}, {"runbook": "https://wiki.example/weather"})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('producer = "weather_service"', "", "`producer` is missing or not a text; write for example"),
        ('"weather_service"', '"someone"', '`producer` is "someone" but the folder is weather_service'),
        ("contact =", "contacts =", "`contacts` is not a key of it; the keys are compatibility, contact,"),
        ("<weather@example.org>", "", "`contact` holds no e-mail address"),
        ('["weather-value"]', '"weather-value"', "`subjects` is missing or not a list of texts"),
        ('["weather-value"]', '["weather-value", "weather-value"]', "`subjects` names weather-value twice"),
        ('["weather-value"]', '["weather"]', "a subject is named <topic>-value or <topic>-key"),
        ('["weather"]', '["wind"]', "`topics` does not name weather"),
        ("topics =", 'compatibility = "SIDEWAYS"\ntopics =', "`compatibility` is 'SIDEWAYS'; write one of NONE"),
        ("topics =", 'compatibility = {x = "FULL"}\ntopics =', "`compatibility` names x, which is not in `subjects`"),
        ("topics =", "topics", "cannot be read as TOML"),
        ("topics =", 'credentials = "hunter2"\ntopics =', "`credentials` is no reference to a secret; write env:NAME"),
        ("topics =", 'principal = "weather"\ntopics =', "`principal` is no user of the cluster; write for example"),
        ('topics = ["weather"]', "topics = {weather = 3}", "`topics.weather` is not a table; write [topics.weather]"),
        ('topics = ["weather"]', "topics.weather.partitions = 0", "`topics.weather.partitions` is 0; write a number"),
        ('topics = ["weather"]', "topics.weather.x = [1]", "`topics.weather.x` is [1]; write a text, a number, true"),
        ("topics =", 'tags = "weather"\ntopics =', "`tags` is not a table; write for example tags = {"),
        ("topics =", 'tags = {domain = "the weather"}\ntopics =', "`tags` has 'domain' = 'the weather'; write for"),
        ("topics =", 'links = {wiki = "wiki"}\ntopics =', "`links` has 'wiki' = 'wiki'; write for example links = {"),
    ],
)
def test_a_wrong_owner_file(schemas, old, new, says) -> None:
    path = schemas / "weather_service" / "owner.toml"
    assert old in OWNER
    path.write_text(OWNER.replace(old, new, 1))
    with pytest.raises(ContractError) as refused:
        load_contracts(schemas)
    assert str(refused.value).startswith(f"{path}: ")
    assert says in str(refused.value)


def test_how_a_topic_is_to_be(schemas) -> None:
    path = schemas / "weather_service" / "owner.toml"
    table = '[topics.weather]\npartitions = 3\nretention.ms = -1\n"cleanup.policy" = "compact"\n'
    path.write_text(OWNER.replace('topics = ["weather"]', "") + table)
    (contract,) = load_contracts(schemas)
    assert contract.topics == ("weather",)
    assert contract.described is not None
    assert (contract.described.partitions, contract.described.replication_factor) == (3, None)
    assert contract.described.settings == {
        "retention.ms": "-1",
        "cleanup.policy": "compact",
        "fluvial.value.schema.validation": "payload",
    }
    path.write_text(path.read_text() + 'fluvial.value.schema.validation = "none"\n')
    (loose,) = load_contracts(schemas)
    assert loose.described is not None
    assert loose.described.settings["fluvial.value.schema.validation"] == "none"


def test_missing_and_stray_files(schemas, tmp_path) -> None:
    folder = schemas / "weather_service"
    with pytest.raises(ContractError, match="there is no such folder"):
        load_contracts(tmp_path / "nowhere")
    (folder / "wind.avsc").write_text('"string"')
    with pytest.raises(ContractError, match=r"wind.avsc: no subject in owner.toml claims it"):
        load_contracts(schemas)
    (folder / "wind.avsc").unlink()
    (folder / "weather.avsc").write_text('{"type": "record"}')
    with pytest.raises(ContractError, match=r"weather.avsc: is not an Avro schema: No name in schema"):
        load_contracts(schemas)
    (folder / "weather.avsc").unlink()
    with pytest.raises(ContractError, match=r"weather.avsc: is missing; owner.toml claims the subject weather-value"):
        load_contracts(schemas)
    (folder / "owner.toml").unlink()
    with pytest.raises(ContractError, match=r"owner.toml: is missing"):
        load_contracts(schemas)


def test_a_subject_has_one_owner(schemas) -> None:
    other = schemas / "zephyr"
    other.mkdir()
    (other / "owner.toml").write_text(OWNER.replace("weather_service", "zephyr"))
    (other / "weather.avsc").write_text(WEATHER)
    with pytest.raises(ContractError, match="claims weather-value, which weather_service owns"):
        load_contracts(schemas)


def test_registering_twice_changes_nothing(schemas, client, memory_log) -> None:
    contracts = load_contracts(schemas)
    seen = []
    (first,) = register_all(client, contracts, on_progress=seen.append)
    assert (first.id, first.is_new, seen) == (1, True, [first])
    written = len(memory_log.records)
    (second,) = register_all(client, contracts)
    assert (second.id, second.is_new) == (1, False)
    assert len(memory_log.records) == written
    assert client.get_config("weather-value") == "BACKWARD"


def test_a_producer_with_a_password_claims_its_subjects(schemas, client, memory_log, monkeypatch) -> None:
    path = schemas / "weather_service" / "owner.toml"
    path.write_text(OWNER + 'credentials = "file:password"\n')
    with pytest.raises(ContractError, match=r"owner.toml: `credentials`: file:password: .* cannot be read"):
        register_all(client, load_contracts(schemas))
    (path.parent / "password").write_text("a secret of the desk\n")
    register_all(client, load_contracts(schemas))
    assert client.owner("weather-value")["contact"] == "Weather desk <weather@example.org>"
    written = len(memory_log.records)
    # The same password by another reference.
    monkeypatch.setenv("DESK", "a secret of the desk")
    path.write_text(OWNER + 'credentials = "env:DESK"\n')
    register_all(client, load_contracts(schemas))
    assert len(memory_log.records) == written
    path.write_text(OWNER)
    (path.parent / "weather.avsc").write_text(WEATHER.replace("double", "float"))
    with pytest.raises(RegistryError, match=r"weather.avsc: Subject 'weather-value' is owned by weather_service"):
        register_all(client, load_contracts(schemas))


def test_checking_changes_nothing_and_says_how_things_stand(schemas, client) -> None:
    path = schemas / "weather_service" / "weather.avsc"

    def status() -> tuple[str, bool]:
        (result,) = check_all(client, load_contracts(schemas))
        assert bool(result.messages) is not result.is_ok
        return result.status, result.is_ok

    assert status() == ("new", True)
    register_all(client, load_contracts(schemas))
    assert status() == ("unchanged", True)
    path.write_text(WEATHER.replace("]}", ', {"name": "gust", "type": ["null", "double"], "default": null}]}'))
    assert status() == ("compatible", True)
    path.write_text(WEATHER.replace("]}", ', {"name": "gust", "type": "double"}]}'))
    assert status() == ("incompatible", False)
    with pytest.raises(RegistryError, match=r"weather.avsc: Schema being registered is incompatible") as refused:
        register_all(client, load_contracts(schemas))
    assert refused.value.code == 409
    assert "incompatible with version 1 of weather-value (BACKWARD): The field 'gust'" in str(refused.value)
    assert str(refused.value).endswith(": give it a default")
    assert "oldSchema" not in str(refused.value)


def test_a_file_that_was_put_back_to_an_older_version_is_named(schemas, client) -> None:
    """To register it again does not make it the latest."""
    path = schemas / "weather_service" / "weather.avsc"
    register_all(client, load_contracts(schemas))
    path.write_text(WEATHER.replace("]}", ', {"name": "gust", "type": ["null", "double"], "default": null}]}'))
    (latest,) = register_all(client, load_contracts(schemas))
    assert latest.outdated is None
    path.write_text(WEATHER)
    (result,) = check_all(client, load_contracts(schemas))
    assert (result.status, result.is_ok) == ("outdated", False)
    (registered,) = register_all(client, load_contracts(schemas))
    for said in (registered.outdated, *result.messages):
        assert "is version 1 of weather-value, and version 2 is the latest" in said
        assert "`fluvial schema show weather-value`" in said
    path.write_text(WEATHER.replace('"type": "record"', '"type": "record", "doc": "as it was"'))
    (again,) = register_all(client, load_contracts(schemas))
    assert (again.is_new, again.outdated) == (True, None)


def test_the_client(client, registry_server) -> None:
    assert client.subjects() == []
    assert client.register("a b/c-value", '{"type":"string"}') == 1
    assert client.register("a b/c-value", '["null","string"]') == 2
    assert client.versions("a b/c-value") == [1, 2]
    assert client.latest("a b/c-value").schema == '["null","string"]'
    assert client.schema_by_id(1) == '"string"'
    assert client.delete_subject("a b/c-value") == [1, 2]
    assert [each.schema for each in client.versions_of_subject("a b/c-value")] == ['"string"', '["null","string"]']
    assert client.look_up("a b/c-value", '"string"') is None
    assert client.check("x", '"string"') == []
    client.set_config("FULL")
    assert (client.get_config(), client.get_config("x")) == ("FULL", None)
    with pytest.raises(RegistryError) as refused:
        client.schema_by_id(9)
    assert (refused.value.code, refused.value.status) == (40403, 404)


def test_a_registry_that_does_not_answer() -> None:
    with RegistryClient("http://127.0.0.1:1") as client, pytest.raises(RegistryError) as failed:
        client.subjects()
    assert "http://127.0.0.1:1 does not answer" in str(failed.value)
    assert failed.value.code is None
