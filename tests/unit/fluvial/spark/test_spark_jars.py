"""The jars: what is asked for, what the lock says, and what becomes of a damaged cache."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from fluvial.spark import jars
from fluvial.spark.jars import Coordinates, JarsError, installed_coordinates, read_lock, require_jars
from fluvial.spark.packaged import packaged

COORDINATES = Coordinates(spark="4.0.2", delta="4.4.0")


def test_the_coordinates_follow_the_installed_versions() -> None:
    assert COORDINATES.packages == (
        "io.delta:delta-spark_4.0_2.13:4.4.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.spark:spark-avro_2.13:4.0.2",
    )
    later = Coordinates(spark="4.1.1", delta="4.4.0")
    assert later.packages[0] == "io.delta:delta-spark_4.1_2.13:4.4.0"
    assert later.key != COORDINATES.key


def test_the_lock_holds_what_the_installed_versions_ask_for() -> None:
    locked = read_lock(packaged("jars.lock"))
    for package in installed_coordinates().packages:
        group, artifact, version = package.split(":")
        assert f"{group}_{artifact}-{version}.jar" in locked
    assert all(len(digest) == 64 for digest in locked.values())


def test_a_broken_lock_names_its_line(tmp_path: Path) -> None:
    lock = tmp_path / "jars.lock"
    lock.write_text("# comment\na:b:1 sha256:00\na:b 12\n")
    with pytest.raises(JarsError, match=r"jars\.lock:3: "):
        read_lock(lock)


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A resolver that brings these files instead of asking a network, and a lock of one of them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = {"g_a-1.jar": b"content"}
    lock = {"g_a-1.jar": hashlib.sha256(b"content").hexdigest()}

    def resolve(_wanted: Coordinates, scratch: Path) -> list[Path]:
        found = []
        for name, content in files.items():
            (scratch / name).write_bytes(content)
            found.append(scratch / name)
        return found

    monkeypatch.setattr(jars, "_resolve", resolve)
    monkeypatch.setattr(jars, "_locked_for", lambda _wanted: lock)
    return files


def test_jars_are_fetched_once(resolver: dict[str, bytes]) -> None:
    said: list[str] = []
    first = require_jars(said.append, coordinates=COORDINATES)
    assert [jar.read_bytes() for jar in first] == [b"content"]
    assert len(said) == 2
    assert require_jars(said.append, coordinates=COORDINATES) == first
    assert len(said) == 2


def test_a_damaged_cache_is_fetched_again(resolver: dict[str, bytes]) -> None:
    (jar,) = require_jars(coordinates=COORDINATES)
    jar.write_bytes(b"damaged")
    said: list[str] = []
    (again,) = require_jars(said.append, coordinates=COORDINATES)
    assert again.read_bytes() == b"content"
    assert "g_a-1.jar has another checksum" in said[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"g_a-1.jar": b"other"}, "another checksum"),
        ({"g_b-1.jar": b"more"}, "not locked"),
        ({"g_a-1.jar": None}, "missing"),
    ],
)
def test_what_is_not_locked_is_not_kept(resolver: dict[str, bytes], change: dict[str, Any], said: str) -> None:
    for name, content in change.items():
        if content is None:
            del resolver[name]
        else:
            resolver[name] = content
    with pytest.raises(JarsError, match=said):
        require_jars(coordinates=COORDINATES)
    assert not (jars.cache_folder("jars") / COORDINATES.key).exists()


def test_the_loser_of_two_fetches_takes_the_winners_jars(
    resolver: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = jars._resolve
    folder = jars.cache_folder("jars") / COORDINATES.key

    def slow(wanted: Coordinates, scratch: Path) -> list[Path]:
        found = inner(wanted, scratch)
        # Another process gets there while this one is still fetching.
        folder.mkdir()
        (folder / "g_a-1.jar").write_bytes(b"content")
        (folder / "COMPLETE").touch()
        return found

    monkeypatch.setattr(jars, "_resolve", slow)
    assert [jar.parent for jar in require_jars(coordinates=COORDINATES)] == [folder]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_versions_of_another_pair_are_refused_with_the_pip_command() -> None:
    with pytest.raises(JarsError, match=r"pip install pyspark==4\.0\.2 delta-spark==4\.4\.0$"):
        require_jars(coordinates=Coordinates(spark="4.0.5", delta="4.4.1"))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("Server access error at url https://mirror/a.pom (java.net.ConnectException)", "check the network"),
        (":: io.delta#delta-spark_4.0_2.13;4.4.0: not found", "the repositories that were asked do not have it"),
    ],
)
def test_the_network_is_blamed_where_it_is_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, said: str
) -> None:
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\necho '{output}'\nexit 1\n")
    submit.chmod(0o755)
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(JarsError, match=said):
        require_jars(coordinates=COORDINATES)
