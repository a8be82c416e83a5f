"""
Rules of registry, lease, producers, lag and Delta commits, broken on purpose one by one: quick tests must fail.

    python tests/mutations/rules_mutations.py [--jobs J] [--list] [name …]

`mutation_table` says what is replaced in which file, and which tests must fail for it. It is done in copies of the
tree, so that nothing here changes; every set of tests is run once unchanged first, since one that always fails proves
nothing. A mutation whose text is not found once in its file is an error: the table has to follow the code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from mutation_table import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 900
TESTS_FAILED = 1  # pytest's status; what cannot be imported or collected has another


class Finding(NamedTuple):
    """What became of a mutation: the first test that failed for it, or why none did."""

    name: str
    noticed_by: str | None
    trouble: str
    seconds: float


def copied(place: Path) -> Path:
    """Copy the files of this tree, those that git does not know yet too; the environment is shared."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, place / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return place


def tested(tree: Path, tests: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run tests in a copy until the first that fails."""
    words = ["-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    environment = os.environ | {"PYTHONPATH": f"{tree}:{tree / 'platform'}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


@contextmanager
def broken(tree: Path, mutation: Mutation) -> Iterator[None]:
    """Break the rule in a copy for as long as this lasts."""
    path = tree / mutation.file
    text = path.read_text()
    found = text.count(mutation.old)
    if found != 1:
        raise LookupError(f"{mutation.file} has the text {found} times: the table has to follow the code")
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        yield
    finally:
        path.write_text(text)


def judged(tree: Path, mutation: Mutation) -> Finding:
    """Break one rule and say which test fails."""
    began = time.monotonic()

    def finding(noticed_by: str | None, trouble: str = "") -> Finding:
        return Finding(mutation.name, noticed_by, trouble, time.monotonic() - began)

    try:
        with broken(tree, mutation):
            done = tested(tree, mutation.tests)
    except LookupError as error:
        return finding(None, str(error))
    except subprocess.TimeoutExpired:
        return finding(f"no end within {SECONDS_MAX} s")
    if done.returncode == TESTS_FAILED:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
        return finding(failed[0].split()[1].rpartition("/")[2] if failed else "a test")
    return finding(None, "" if done.returncode == 0 else done.stdout[-2000:] + done.stderr[-2000:])


def main() -> int:
    """Print what notices each mutation; return 1 when one survives."""
    parser = argparse.ArgumentParser(description="Break rules on purpose: which test fails for it.")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the tree at once (default 2)")
    parser.add_argument("--list", action="store_true", help="only say what would be broken")
    parser.add_argument("names", nargs="*", metavar="name", help="only mutations with this in their names")
    options = parser.parse_args()
    wanted = [each for each in MUTATIONS if not options.names or any(name in each.name for name in options.names)]
    if options.list:
        for each in wanted:
            print(f"{each.name:<72} {each.file}")
        return 0
    with tempfile.TemporaryDirectory(prefix="rules-mutations-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(copied(Path(folder) / str(number)))

        def unbroken(tests: Sequence[str]) -> str:
            tree = trees.get()
            try:
                done = tested(tree, tests)
            finally:
                trees.put(tree)
            return "" if done.returncode == 0 else done.stdout[-4000:] + done.stderr[-2000:]

        def one(mutation: Mutation) -> Finding:
            tree = trees.get()
            try:
                return judged(tree, mutation)
            finally:
                trees.put(tree)

        for trouble in pool.map(unbroken, sorted({each.tests for each in wanted})):
            if trouble:
                print(f"tests fail with nothing broken:\n{trouble}")
                return 1
        missed = 0
        print(f"{'the rule that is broken':<72} noticed by")
        for finding in pool.map(one, wanted):
            missed += finding.noticed_by is None
            print(f"{finding.name:<72} {finding.noticed_by or 'NOTHING'}  {finding.seconds:.0f} s", flush=True)
            if finding.trouble:
                print(f"    {finding.trouble}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
