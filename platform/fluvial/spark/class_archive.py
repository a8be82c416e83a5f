"""
The JVM's archive of the classes that a session loads, with which Spark starts in well under the usual time.

It is the JVM's own (dynamic AppCDS, https://openjdk.org/jeps/350): made once on a machine, in half a minute, by a small
run of real work whose classes the JVM writes down at its end. An archive of another Java, of other jars or of another
class path the JVM leaves unused by itself. Without one everything works as before, and starts more slowly.

`python -m fluvial.spark.jars` makes it ahead of time, and otherwise the first session of an environment.
"""

import fcntl
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fluvial.spark.cache import cache_folder
from fluvial.spark.java import Java

# What is run so that its classes are written down; named only, as it uses what is built on this package.
TRAINING = "fluvial.testing.class_archive"
SECONDS_MAX = 300.0
# Whether the archive fits is the JVM's to judge; of one that does not it would speak on stdout.
_SILENT = "-Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """
    The archive for one Java and one set of jars; its file carries its size in its name.

    `place` stands for where Java and pyspark are, `key` for what is there now. A JVM does not survive an archive that
    was cut off, and so one that is shorter than it says is not handed to it.
    """

    folder: Path
    place: str
    key: str

    @classmethod
    def of(cls, java: Java, jars: Iterable[Path]) -> "ClassArchive":
        """
        The archive for this Java, the installed pyspark and `jars`, whether it is made or not.
        """
        import pyspark

        program = java.program.resolve()
        home = Path(pyspark.__file__).parent
        files = [program, *sorted((home / "jars").glob("*.jar"))]
        stats = [(str(file), status.st_size, status.st_mtime_ns) for file in files if (status := file.stat())]
        return cls(cache_folder("classes"), _digest(program, home), _digest(pyspark.__version__, *stats, *jars))

    @property
    def file(self) -> Path | None:
        """
        The whole archive, or None while there is none.
        """
        for path in sorted(self.folder.glob(f"{self.place}-{self.key}-*.jsa")):
            if path.stem.rpartition("-")[2] == str(path.stat().st_size):
                return path
        return None

    @property
    def options(self) -> str:
        """
        The options of a JVM that reads its classes from here; none while there is no archive.
        """
        return "" if (file := self.file) is None else f'-XX:SharedArchiveFile="{file}" {_SILENT}'

    @contextmanager
    def missing(self, *, again: bool) -> Iterator[bool]:
        """
        Whether this process is to make it: it is not there, and no other process makes it until the block ends.

        Nor is it made where that has failed before, unless `again`: each session would wait for the same failure.
        """
        with ExitStack() as held:
            yield self.file is None and self._claim(held, again)

    def _claim(self, held: ExitStack, again: bool) -> bool:
        """Lock the note of the attempt for as long as `held` is open."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            note = held.enter_context(self._note.open("a+", encoding="utf-8"))
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        note.seek(0)
        return again or not note.read()

    @property
    def _note(self) -> Path:
        """Is locked while the archive is made, and says why it could not be."""
        return self.folder / f"{self.place}-{self.key}.why-not"

    def make(self) -> str | None:
        """
        Make the archive in a process of its own; returns None, or the line that says why there is none.

        A killed one leaves nothing half done, and of two at once each is whole.
        """
        problem = self._make()
        with suppress(OSError):
            if problem is None:
                self._note.unlink(missing_ok=True)
            else:
                self._note.write_text(problem, encoding="utf-8")
        return problem

    def _make(self) -> str | None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".making-", dir=self.folder) as scratch:
                made = Path(scratch) / "classes.jsa"
                done = subprocess.run(
                    [sys.executable, "-m", TRAINING, str(made)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=SECONDS_MAX,
                    check=False,
                )
                if done.returncode != 0 or not made.exists():
                    lines = [line for line in done.stderr.splitlines() if line.strip()]
                    return lines[-1][:300] if lines else f"the run ended with {done.returncode} and no archive"
                made.rename(self.folder / f"{self.place}-{self.key}-{made.stat().st_size}.jsa")
            self._drop_outdated()
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return None

    def _drop_outdated(self) -> None:
        """Remove those of what was at the same place before; a JVM that runs on one keeps it."""
        for path in self.folder.glob(f"{self.place}-*"):
            if not path.name.startswith(f"{self.place}-{self.key}"):
                path.unlink(missing_ok=True)


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def options_to_make(archive: Path) -> str:
    """
    The options of a JVM that writes the classes it has loaded to `archive` when it ends.
    """
    return f'-XX:ArchiveClassesAtExit="{archive}" {_SILENT}'
