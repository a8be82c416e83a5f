"""Which catalog is meant, by the file, its profiles and variables, and what is said of one that cannot be."""

from pathlib import Path

import pytest

from fluvial.catalog.settings import CatalogSettings
from fluvial.config import Settings, environment_of, load_settings
from fluvial.errors import ConfigError

UNITY = '[catalog]\nunity = "http://unity:8080/"\n'


def loaded(folder: Path, text: str, profile: str | None = None, **variables: str) -> Settings:
    (folder / "fluvial.toml").write_text(text)
    return load_settings(environ=variables, directory=folder, profile=profile)


def catalog(folder: Path, text: str, profile: str | None = None, **variables: str) -> CatalogSettings:
    found = loaded(folder, text, profile, **variables).catalog
    assert found is not None
    return found


def test_the_file_names_a_catalog_and_a_variable_the_token(tmp_path: Path) -> None:
    found = catalog(tmp_path, UNITY + 'name = "shop"\n', FLUVIAL_CATALOG_TOKEN="s3cret")
    assert (found.unity, found.hive, found.name, found.token) == ("http://unity:8080", None, "shop", "s3cret")
    assert str(found) == "Unity Catalog at http://unity:8080"
    assert "s3cret" not in repr(found)


def test_without_one_there_is_none(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").catalog is None
    # A token that is there for all projects names no catalog.
    assert loaded(tmp_path, "", FLUVIAL_CATALOG_TOKEN="s3cret").catalog is None


def test_a_variable_and_a_profile_name_another_catalog_than_the_file(tmp_path: Path) -> None:
    by_variable = catalog(tmp_path, '[catalog]\nhive = "thrift://hive:9083"\n', FLUVIAL_CATALOG_UNITY="http://u:1")
    assert (by_variable.unity, by_variable.hive) == ("http://u:1", None)
    profiles = UNITY + '[profiles.prod.catalog]\nhive = "thrift://a:9083,thrift://b:9083"\n'
    assert catalog(tmp_path, profiles, "prod").hive == "thrift://a:9083,thrift://b:9083"
    assert catalog(tmp_path, profiles).unity == "http://unity:8080"


def test_a_process_that_is_started_finds_the_same_catalog(tmp_path: Path) -> None:
    settings = loaded(tmp_path, UNITY + 'name = "shop"\n"ssl.ca.location" = "ca.pem"\n', FLUVIAL_CATALOG_TOKEN="s3cret")
    assert load_settings(environ=environment_of(settings), directory=tmp_path / "none").catalog == settings.catalog


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[catalog]\nunity = "unity:8080"\n', "fluvial.toml: catalog.unity: this value will not do; write http://"),
        ('[catalog]\nunity = "http://ada:pw@unity"\n', "catalog.unity: this value will not do"),
        ('[catalog]\nhive = "hive:9083"\n', "catalog.hive: 'hive:9083' will not do; write thrift://host:9083"),
        (UNITY + 'hive = "thrift://hive:9083"\n', "catalog.hive and .*catalog.unity: leave one of them out"),
        (UNITY + 'nmae = "shop"\n', "catalog.nmae: no such property; did you mean name?"),
        (UNITY + 'name = "a.b"\n', "catalog.name: 'a.b' will not do"),
        (UNITY + 'token = "with blank"\n', "catalog.token: this value will not do"),
        ('[catalog]\nname = "shop"\n', "catalog: names no catalog; write unity or hive"),
        ('[catalog]\nhive = "thrift://h:1"\ntoken = "x"\n', "catalog.token: a Hive metastore takes no token"),
        ('catalog = "unity"\n', r"catalog: write a table, \[catalog\]"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        loaded(tmp_path, text)
    assert "pw" not in str(raised.value)
