"""
What a warehouse on S3 (`s3a://…`) needs beyond other sessions: Hadoop's file system for it, the parts of Amazon's SDK
that this uses, and a log store for Delta.

Delta's own log store for S3 looks whether a commit is there and then writes it: of two drivers at one version the
second would replace what the first has committed. The one here puts a commit on the condition that there is none
(If-None-Match), which S3 has had since 2024 and most stores that speak its protocol have too; a store that does not
is refused. It is a class of Java, in :file:`ConditionalLogStore.java` beside this module, which Spark's own compiler
(Janino) translates once on a machine.

`python -m fluvial.spark.s3` fetches and compiles ahead of time; `--lock` writes the lock again.
"""

import hashlib
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fluvial.errors import FluvialError
from fluvial.spark.cache import cache_folder
from fluvial.spark.jars import JarsError, Say, fetched, read_lock, require_jars, write_lock
from fluvial.spark.java import require_java
from fluvial.spark.packaged import packaged

SCHEME = "s3a:"
LOG_STORE = "fluvial.delta.ConditionalLogStore"
CONF: Mapping[str, str] = {"spark.delta.logStore.s3a.impl": LOG_STORE}
"""What a session on S3 is told, unless the user's settings say otherwise."""

LOCK_NAME = "s3-jars.lock"
_SOURCE = Path(__file__).with_name("ConditionalLogStore.java")
# The file system is that of the Hadoop that Spark ships; of the SDK only what it uses, as the whole is 600 MB.
HADOOP, SDK = "3.4.1", "2.57.8"
_ENTRY_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class S3Jars:
    """
    The jars of Hadoop's file system for S3.
    """

    @property
    def packages(self) -> tuple[str, ...]:
        """
        The Maven coordinates, as `group:artifact:version`.
        """
        parts = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
        return (f"org.apache.hadoop:hadoop-aws:{HADOOP}", *(f"software.amazon.awssdk:{part}:{SDK}" for part in parts))

    @property
    def left_out(self) -> tuple[str, ...]:
        """
        The whole SDK in one jar, a second HTTP client, and a logger that Spark has another one for.
        """
        return (
            *(f"software.amazon.awssdk:{part}" for part in ("bundle", "apache5-client")),
            "org.apache.httpcomponents.client5:httpclient5",
            "commons-logging:commons-logging",
        )

    @property
    def key(self) -> str:
        """
        The name of their folder in the cache.
        """
        digest = hashlib.sha256("\n".join((*self.packages, *self.left_out)).encode()).hexdigest()
        return f"s3-hadoop-{HADOOP}-sdk-{SDK}-{digest[:8]}"


def is_on_s3(warehouse: str) -> bool:
    """
    Whether a warehouse is one that Hadoop's file system for S3 reads.
    """
    return warehouse.startswith(SCHEME)


def require_s3_jars(jars: Sequence[Path], say: Say | None = None) -> tuple[Path, ...]:
    """
    The jars that a session on S3 has beside `jars`, fetched and compiled first when this machine has not got them.

    Raises :class:`~fluvial.spark.jars.JarsError`.
    """
    locked = read_lock(packaged(LOCK_NAME))
    found = fetched(S3Jars(), locked, "Spark's jars for S3 (once, about 12 MB)", say)
    return (*found, _log_store([*jars, *found]))


def _log_store(jars: Sequence[Path]) -> Path:
    """The jar of the log store, compiled against `jars` and Spark's own unless it is there."""
    import pyspark

    source = _SOURCE.read_text(encoding="utf-8")
    made_of = "\n".join([source, pyspark.__version__, *(jar.name for jar in jars)])
    folder = cache_folder("jars")
    jar = folder / f"fluvial-log-store-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jar"
    if not jar.exists():
        classes = _compiled(source, jars)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".log-store-", dir=folder) as scratch:
            made = Path(scratch) / jar.name
            with zipfile.ZipFile(made, "w") as archive:
                for name in sorted(classes):
                    entry = zipfile.ZipInfo(f"{name.replace('.', '/')}.class", _ENTRY_TIME)
                    archive.writestr(entry, classes[name])
            made.rename(jar)
    return jar


def _compiled(source: str, jars: Sequence[Path]) -> dict[str, bytes]:
    """The classes of a source, by their names."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from py4j.protocol import Py4JError

    sparks = Path(pyspark.__file__).parent / "jars"
    (jar,) = sparks.glob("py4j-*.jar")
    path = os.pathsep.join([f"{sparks}{os.sep}*", *map(str, jars)])
    java = str(require_java().program)
    port, token = launch_gateway(classpath=path, jarpath=str(jar), java_path=java, die_on_exit=True, enable_auth=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(gateway.jvm.java.lang.ClassLoader.getSystemClassLoader())
        compiler.cook(source)
        classes = compiler.getBytecodes()
        return {str(name): bytes(classes[name]) for name in classes}
    except Py4JError as error:
        lines = str(getattr(error, "java_exception", error)).splitlines()
        raise JarsError(
            f"the log store for S3 does not compile: {lines[0]}: report it, with your Java's version"
        ) from error
    finally:
        gateway.shutdown()


def main(arguments: list[str]) -> int:
    """
    Fetch and compile; `--lock` writes the lock.
    """

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        if arguments == ["--lock"]:
            path = packaged(LOCK_NAME)
            what = f"Hadoop {HADOOP} and Amazon's SDK {SDK}"
            say(f"{write_lock(path, S3Jars(), what, 'fluvial.spark.s3')} jars locked in {path}")
        elif arguments:
            say("usage: python -m fluvial.spark.s3 [--lock]")
            return 2
        else:
            require_s3_jars(require_jars(say), say)
    except FluvialError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
