"""
The jars that Spark needs beside its own: Delta, the Kafka source and Avro.

They are resolved once, by Spark's own resolver, into a folder of the user's cache, checked against the checksums of
`infra/spark/jars.lock`, and used from disk from then on. `python -m fluvial.spark.jars` does it ahead of time;
`--lock` writes the lock again for the installed pyspark.

What Spark already ships is left out of the resolution: the loader would take Spark's copy anyway, and it is four
fifths of the download.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from fluvial.errors import FluvialError
from fluvial.extras import needed
from fluvial.spark.cache import cache_folder
from fluvial.spark.class_archive import ClassArchive
from fluvial.spark.java import require_java
from fluvial.spark.packaged import packaged

Say = Callable[[str], None]

LOCK_NAME = "jars.lock"
_COMPLETE = "COMPLETE"
_VERSIONED_JAR = re.compile(r"^(?P<artifact>.+?)-\d[^-]*(?:-[\w.]+)*\.jar$")
_RESOLVED_JAR = re.compile(r"^(?P<group>[^_]+)_(?P<artifact>.+)-(?P<version>\d[\w.]*(?:-\d+)?)\.jar$")

# The token provider that the Kafka source of a later 4.0.x asks for does not resolve everywhere; the source of x.y.0
# runs on every x.y.z.
_KAFKA_SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13:{minor}.0"
# What the resolver says when it could not ask.
_AWAY = ("Server access error", "UnknownHostException", "ConnectException", "timed out", "SSLException")
_AVRO = "org.apache.spark:spark-avro_2.13:{spark}"
_DELTA = "io.delta:delta-spark_{minor}_2.13:{delta}"


class JarsError(FluvialError):
    """
    Spark's additional jars could not be had, or are not the ones that were locked.
    """


class Wanted(Protocol):
    """
    A set of jars to have: what the resolver is asked for, and where they are kept.
    """

    @property
    def packages(self) -> tuple[str, ...]:
        """
        The Maven coordinates, as `group:artifact:version`.
        """

    @property
    def left_out(self) -> tuple[str, ...]:
        """
        What is not to come with them, as `group:artifact`.
        """

    @property
    def key(self) -> str:
        """
        The name of their folder in the cache.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """
    What to resolve for one pair of pyspark and delta-spark versions.
    """

    spark: str
    delta: str

    @property
    def packages(self) -> tuple[str, ...]:
        """
        The Maven coordinates, as `group:artifact:version`.
        """
        minor = ".".join(self.spark.split(".")[:2])
        return tuple(
            pattern.format(spark=self.spark, minor=minor, delta=self.delta)
            for pattern in (_DELTA, _KAFKA_SOURCE, _AVRO)
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """
        Nothing but what Spark ships, as `group:artifact`.
        """
        return ()

    @property
    def key(self) -> str:
        """
        The name of their folder in the cache.
        """
        digest = hashlib.sha256("\n".join(self.packages).encode()).hexdigest()
        return f"spark-{self.spark}-delta-{self.delta}-{digest[:8]}"

    @property
    def folder(self) -> Path:
        """
        Their folder in the cache; it may not be there yet.
        """
        return folder_of(self)


def installed_coordinates() -> Coordinates:
    """
    The coordinates that fit the pyspark and delta-spark of this environment.
    """
    from importlib.metadata import version

    with needed():
        return Coordinates(spark=version("pyspark"), delta=version("delta-spark"))


def locked_coordinates() -> Coordinates:
    """
    The coordinates that the lock of this fluvial is for.
    """
    sums = read_lock(packaged(LOCK_NAME))
    versions = {match["artifact"]: match["version"] for match in map(_RESOLVED_JAR.match, sums) if match}
    delta = next(version for artifact, version in versions.items() if artifact.startswith("delta-spark"))
    return Coordinates(spark=versions["spark-avro_2.13"], delta=delta)


def folder_of(wanted: Wanted) -> Path:
    """
    The folder of the cache for these jars; it may not be there yet.
    """
    return cache_folder("jars") / wanted.key


def read_lock(path: Path) -> dict[str, str]:
    """
    File name to sha256, from lines `group:artifact:version sha256:<hex>`; `#` starts a comment.
    """
    sums: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        parts = words[0].split(":")
        if len(words) != 2 or len(parts) != 3 or not words[1].startswith("sha256:"):
            raise JarsError(f"{path}:{number}: not `group:artifact:version sha256:<hex>`; write it with --lock")
        sums[f"{parts[0]}_{parts[1]}-{parts[2]}.jar"] = words[1].removeprefix("sha256:")
    return sums


def require_jars(say: Say | None = None, *, coordinates: Coordinates | None = None) -> tuple[Path, ...]:
    """
    The jars on disk, fetched first when this machine has not got them yet.

    `say` gets a line when something long begins and when it is done. Raises :class:`JarsError`.
    """
    wanted = coordinates or installed_coordinates()
    locked = _locked_for(wanted)
    if locked is None:
        raise JarsError(_no_pair(wanted))
    return fetched(wanted, locked, "Spark's jars for Delta, Kafka and Avro (once, about 25 MB)", say)


def fetched(wanted: Wanted, locked: Mapping[str, str], what: str, say: Say | None = None) -> tuple[Path, ...]:
    """
    The jars of the checksums `locked` on disk, fetched first when they are not there. Raises :class:`JarsError`.
    """
    say = say or (lambda _line: None)
    folder = folder_of(wanted)
    if (folder / _COMPLETE).exists():
        problem = _difference(folder, locked)
        if problem is None:
            return _jars_of(folder)
        say(f"the jars in {folder} are damaged ({problem}): fetching them again")
        shutil.rmtree(folder, ignore_errors=True)
    say(f"fetching {what} …")
    _fetch(wanted, folder, locked)
    jars = _jars_of(folder)
    say(f"{len(jars)} jars are ready in {folder}")
    return jars


def prepare_jars(say: Say | None = None) -> tuple[Path, ...]:
    """
    As :func:`require_jars`; the first time in an environment their classes are laid out as well.
    """
    jars = require_jars(say)
    lay_out_classes(jars, say)
    return jars


def lay_out_classes(jars: tuple[Path, ...], say: Say | None = None, *, again: bool = False) -> None:
    """
    Make the JVM's archive of the classes of a session with these jars, unless it is there or being made.

    Where it could not be made it is tried once more only with `again`.
    """
    say = say or (lambda _line: None)
    archive = ClassArchive.of(require_java(), jars)
    with archive.missing(again=again) as is_missing:
        if not is_missing:
            return
        say("laying out Spark's classes so that it starts in half the time (once, about a minute) …")
        problem = archive.make()
        if problem is not None:
            say(f"that could not be done, and Spark starts as it does without: {problem}")


def write_lock(path: Path, wanted: Wanted, for_what: str, module: str) -> int:
    """
    Resolve afresh and write what came to `path`; returns the number of jars.
    """
    with tempfile.TemporaryDirectory(prefix="fluvial-jars-") as scratch:
        found = _resolve(wanted, Path(scratch))
        entries = []
        for jar in found:
            match = _RESOLVED_JAR.match(jar.name)
            if match is None:
                raise JarsError(f"{jar.name} is not named <group>_<artifact>-<version>.jar: the lock cannot hold it")
            entries.append(f"{match['group']}:{match['artifact']}:{match['version']} sha256:{_sha256(jar)}")
    header = [
        f"# What Spark's resolver brings for {for_what} beyond Spark's:",
        *(f"#   {package}" for package in wanted.packages),
        f"# Written by `python -m {module} --lock`; checked whenever the jars are fetched or used.",
    ]
    path.write_text("\n".join([*header, *sorted(entries), ""]), encoding="utf-8")
    return len(entries)


def _no_pair(wanted: Coordinates) -> str:
    """The reason why the installed versions are refused, with the command that installs those of the lock."""
    locked = locked_coordinates()
    return (
        f"pyspark {wanted.spark} and delta-spark {wanted.delta} are installed, and this fluvial has the jars of "
        f"another pair: pip install pyspark=={locked.spark} delta-spark=={locked.delta}"
    )


def _locked_for(wanted: Coordinates) -> Mapping[str, str] | None:
    """The lock's sums, or None where the lock is of other versions than the installed ones."""
    sums = read_lock(packaged(LOCK_NAME))
    names = {"{}_{}-{}.jar".format(*package.split(":")) for package in wanted.packages}
    return sums if names <= sums.keys() else None


def _fetch(wanted: Wanted, folder: Path, locked: Mapping[str, str]) -> None:
    """
    Resolve beside `folder` and rename: a killed fetch leaves nothing half done, and of two at once the first wins.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{wanted.key}-", dir=folder.parent) as scratch:
        found = _resolve(wanted, Path(scratch))
        ready = Path(scratch) / "ready"
        ready.mkdir()
        for jar in found:
            jar.rename(ready / jar.name)
        problem = _difference(ready, locked)
        if problem is not None:
            raise JarsError(f"the fetched jars are not those of {LOCK_NAME}: {problem}; nothing was kept")
        (ready / _COMPLETE).touch()
        try:
            ready.rename(folder)
        except OSError:
            if not (folder / _COMPLETE).exists():
                raise


def _resolve(wanted: Wanted, scratch: Path) -> list[Path]:
    """
    Run Spark's resolver on an empty program; the settings of `$SPARK_CONF_DIR` (mirrors, ivy settings) hold.
    """
    require_java()
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    program = scratch / "nothing.py"
    program.write_text("", encoding="utf-8")
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local[1]"),
        *("--packages", ",".join(wanted.packages)),
        *("--exclude-packages", ",".join((*(f"*:{each}" for each in _shipped_with(home)), *wanted.left_out))),
        *("--conf", f"spark.jars.ivy={scratch / 'ivy'}"),
        str(program),
    ]
    environ = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    found = sorted((scratch / "ivy" / "jars").glob("*.jar"))
    if done.returncode != 0 or not found:
        output = done.stdout + done.stderr
        away = any(sign in output for sign in _AWAY)
        repair = "check the network" if away else "the repositories that were asked do not have it"
        raise JarsError(
            f"cannot fetch Spark's jars ({_why(output)}): {repair}; behind a mirror, set spark.jars.ivySettings in "
            "$SPARK_CONF_DIR/spark-defaults.conf"
        )
    return found


def _shipped_with(home: Path) -> list[str]:
    """The artifacts that lie in Spark's own folder of jars."""
    names = (_VERSIONED_JAR.match(jar.name) for jar in (home / "jars").glob("*.jar"))
    return sorted({match["artifact"] for match in names if match})


def _why(output: str) -> str:
    """The line of the resolver's long report that names the cause."""
    lines = [line.strip(" \t:") for line in output.splitlines()]
    for sign in ("unresolved dependency", "Server access error", "not found", "Exception", "Error"):
        for line in lines:
            if sign in line:
                return line[:200]
    return lines[-1][:200] if lines else "the resolver said nothing"


def _difference(folder: Path, locked: Mapping[str, str]) -> str | None:
    """What about the folder's jars is not as locked; None when they are."""
    found = {jar.name: jar for jar in folder.glob("*.jar")}
    for name in sorted(locked.keys() | found.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in locked:
            return f"{name} is not locked"
        if _sha256(found[name]) != locked[name]:
            return f"{name} has another checksum"
    return None


def _jars_of(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.glob("*.jar")))


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_as_of(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@cache
def _sha256_as_of(path: Path, made: tuple[int, ...]) -> str:
    """The checksum of a file, which a process reads once; `made` tells it from another one at its place."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """
    Fetch the jars and lay out their classes; `--list` names them on stdout, `--lock` writes the lock.
    """

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        if arguments == ["--lock"]:
            wanted = installed_coordinates()
            pair = f"pyspark {wanted.spark} and delta-spark {wanted.delta}"
            path = packaged(LOCK_NAME)
            say(f"{write_lock(path, wanted, pair, 'fluvial.spark.jars')} jars locked in {path}")
        elif arguments == ["--list"]:
            # As `spark-submit --jars` takes them.
            sys.stdout.write(",".join(map(str, require_jars(say))) + "\n")
        elif arguments:
            say("usage: python -m fluvial.spark.jars [--list | --lock]")
            return 2
        else:
            lay_out_classes(require_jars(say), say, again=True)
    except FluvialError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
