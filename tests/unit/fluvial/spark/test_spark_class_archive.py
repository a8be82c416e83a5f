"""The archive of a session's classes: where it lies, when it is used; no Spark is started."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fluvial.config import Settings
from fluvial.spark import class_archive
from fluvial.spark.class_archive import ClassArchive
from fluvial.spark.java import Java
from fluvial.spark.session import session_conf

JAVA = Java(program=Path(sys.executable), major=17)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return ClassArchive.of(JAVA, [Path("/a.jar")])


def put(archive: ClassArchive, size: int, says: int) -> Path:
    archive.folder.mkdir(parents=True, exist_ok=True)
    path = archive.folder / f"{archive.place}-{archive.key}-{says}.jsa"
    path.write_bytes(bytes(size))
    return path


def test_a_session_reads_its_classes_from_the_archive_that_is_there(archive: ClassArchive) -> None:
    options = "spark.driver.extraJavaOptions"
    assert "SharedArchiveFile" not in session_conf(Settings(), ["/a.jar"], archive)[options]
    path = put(archive, 10, 10)
    assert f'-XX:SharedArchiveFile="{path}"' in session_conf(Settings(), ["/a.jar"], archive)[options]
    mine = session_conf(Settings(spark_conf={options: "-Dmine=1"}), ["/a.jar"], archive)
    assert str(path) in mine[options]
    assert mine[options].endswith("-Dmine=1")


def test_one_that_was_cut_off_is_never_used(archive: ClassArchive) -> None:
    put(archive, 9, 10)
    assert archive.file is None
    assert archive.options == ""


def test_other_jars_have_another(archive: ClassArchive) -> None:
    put(archive, 10, 10)
    assert ClassArchive.of(JAVA, [Path("/b.jar")]).file is None
    assert ClassArchive.of(JAVA, [Path("/a.jar")]).file is not None


def test_jars_that_were_installed_again_have_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM compares their times, and would leave the archive unused without a word."""
    home = tmp_path / "pyspark"
    jar = home / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr("pyspark.__file__", str(home / "__init__.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = ClassArchive.of(JAVA, [])
    os.utime(jar, (1, 1))
    after = ClassArchive.of(JAVA, [])
    assert before.key != after.key
    assert before == replace(after, key=before.key)


@pytest.mark.parametrize("program", ["raise SystemExit('no room')", "pass"])
def test_what_cannot_be_made_is_told_and_leaves_nothing(
    archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    (tmp_path / "no_training.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(class_archive, "TRAINING", "no_training")
    problem = archive.make()
    assert problem == ("no room" if "no room" in program else "the run ended with 0 and no archive")
    assert [path.read_text() for path in archive.folder.iterdir()] == [problem]
    with archive.missing(again=False) as is_missing:
        assert not is_missing, "the next session does not wait for the same failure"
    with archive.missing(again=True) as is_missing:
        assert is_missing
    (tmp_path / "no_training.py").write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(bytes(5))")
    assert archive.make() is None
    assert [path.suffix for path in archive.folder.iterdir()] == [".jsa"]


def test_only_one_process_makes_it(archive: ClassArchive) -> None:
    """The run that makes it has a session of its own, which must not make another one."""
    with archive.missing(again=False) as first, archive.missing(again=True) as second:
        assert (first, second) == (True, False)
    with archive.missing(again=False) as later:
        assert later
    put(archive, 10, 10)
    with archive.missing(again=True) as is_missing:
        assert not is_missing


def test_where_nothing_can_be_kept_none_is_made(archive: ClassArchive, tmp_path: Path) -> None:
    archive.folder.parent.mkdir(parents=True)
    archive.folder.touch()
    with archive.missing(again=True) as is_missing:
        assert not is_missing


def test_what_was_made_is_kept_whole(archive: ClassArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_training.py").write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_bytes(bytes(5))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(class_archive, "TRAINING", "some_training")
    outdated = put(replace(archive, key="before"), 10, 10)
    of_another = put(replace(archive, place="elsewhere"), 10, 10)
    assert archive.make() is None
    assert archive.file is not None
    assert archive.file.stat().st_size == 5
    assert of_another.exists()
    assert not outdated.exists(), "of the same place"
