"""
The rules of this repository that no linter knows.

Each violation is printed as `path:line: what is wrong; how to repair it`.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from import_arrows import between_folders, circles, imports_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("log_broker", "platform", "pipelines", "dagster_project")
MODULE_LINES_MAX = 600
TEST_NAME_MAX = 80
CLASS_LINES_MAX = 300
# Those that are longer, and may only become shorter.
LONGER_CLASSES = {
    # The simulation's: each counts `Client` or `Cluster`, which it extends.
    "ClassicMember": 351,
    "ClusterWorld": 330,
    "ConsumerMember": 349,
    "Copier": 309,
}

# Said in pieces, so that this file keeps the rule it checks.
PACKAGE_HOSTS = re.compile(
    "|".join(
        re.escape(".".join(parts))
        for parts in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("maven", "org"),
            ("maven", "apache", "org"),
            ("central", "sonatype", "com"),
            ("registry", "npmjs", "org"),
            ("anaconda", "org"),
        )
    )
    + "|--(?:extra-)?index-url"
)
MACHINE_PATHS = re.compile(r"(?<![\w.:/})\]$*-])/(?:" + "|".join(("work", "root", "tmp", r"home/\w+")) + r")(?![\w-])")

MARKDOWN_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
INLINE_CODE = re.compile(r"`[^`]*`")
MARKDOWN_FENCE = re.compile(r"^\s*(```|~~~)")
ELSEWHERE = ("http://", "https://", "mailto:")


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is committed or about to be: what git tracks and what it would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = (ROOT / name for name in sorted(set(listed.stdout.split("\0"))) if name)
    return tuple(path for path in paths if path.is_file())


def source_modules() -> list[Path]:
    """The Python modules that users run, tests left out."""
    return [
        path
        for path in repository_files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in SOURCE_FOLDERS
        and "tests" not in path.relative_to(ROOT).parts
    ]


def at(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def report(problems: list[str]) -> str:
    return f"{len(problems)} against the house rules:\n" + "\n".join(problems)


def text_lines(path: Path) -> list[str]:
    """The lines of a text file; none for a binary one."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def test_a_module_is_read_at_one_sitting() -> None:
    problems = [
        at(path, lines, f"{lines} lines; look for the seam and split it at {MODULE_LINES_MAX} or fewer")
        for path in source_modules()
        if (lines := len(text_lines(path))) > MODULE_LINES_MAX
    ]
    assert not problems, report(problems)


def test_a_class_is_read_at_one_sitting() -> None:
    """The lines of a class count, and those of the classes of ours that it inherits from."""
    classes: dict[str, tuple[Path, ast.ClassDef]] = {}  # by dotted name, as those that are imported
    imported: dict[tuple[Path, str], str] = {}
    for path in source_modules():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("platform.")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                classes[f"{module}.{node.name}"] = path, node
                imported[path, node.name] = f"{module}.{node.name}"
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    imported[path, alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def length(path: Path, node: ast.ClassDef) -> int:
        bases = {imported.get((path, base.id)) for base in node.bases if isinstance(base, ast.Name)}
        return (node.end_lineno or 0) - node.lineno + 1 + sum(length(*classes[base]) for base in bases & classes.keys())

    found = [(path, node, length(path, node)) for path, node in classes.values()]
    problems = [
        at(path, node.lineno, f"{node.name} has {lines} lines with what it inherits; split it")
        for path, node, lines in found
        if lines > max(CLASS_LINES_MAX, LONGER_CLASSES.get(node.name, 0))
    ]
    assert not problems, report(problems)
    longer = {node.name for _, node, lines in found if lines > CLASS_LINES_MAX}
    assert longer == LONGER_CLASSES.keys(), "take out what is short enough by now"


def test_the_name_of_a_test_fits_into_a_line() -> None:
    problems = [
        at(path, node.lineno, f"{node.name} has {len(node.name)} characters; {TEST_NAME_MAX} are enough")
        for path in repository_files()
        if path.suffix == ".py" and path.name.startswith("test_")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.name) > TEST_NAME_MAX
    ]
    assert not problems, report(problems)


def test_no_drawer_for_odds_and_ends() -> None:
    problems = [
        at(path, 1, "a drawer for odds and ends; put each helper beside its only user or give it a name of its own")
        for path in repository_files()
        if path.stem in {"utils", "util"} and path.suffix == ".py"
    ]
    assert not problems, report(problems)


def undocumented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """
    The module, its public classes and its public functions that have no docstring.

    Where a module has one public name only, the module's own docstring speaks for it.
    """
    if not ast.get_docstring(tree) and tree.body:
        yield 1, "the module"
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    public = [node for node in tree.body if isinstance(node, definitions) and not node.name.startswith("_")]
    if len(public) > 1:
        yield from ((node.lineno, f"`{node.name}`") for node in public if not ast.get_docstring(node))


def test_what_is_public_is_documented() -> None:
    problems = [
        at(path, line, f"{what} has no docstring; say in a sentence what it is for")
        for path in source_modules()
        for line, what in undocumented(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not problems, report(problems)


def speaks_to_the_terminal(path: Path) -> bool:
    """The command line, the demo and a new project's script print; everything else logs or returns."""
    if not {"cli", "project-template"}.isdisjoint(path.parts):
        return True
    return path.stem in {"__main__", "demo"} or path.stem.startswith("demo_")


def test_only_the_command_line_prints() -> None:
    problems = [
        at(path, node.lineno, "print() outside the command line; return the text, log it, or move it to fluvial/cli")
        for path in source_modules()
        if not speaks_to_the_terminal(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not problems, report(problems)


def test_no_file_names_a_package_host_or_a_path_of_one_machine() -> None:
    problems = []
    for path in repository_files():
        for number, line in enumerate(text_lines(path), 1):
            if host := PACKAGE_HOSTS.search(line):
                problems.append(
                    at(path, number, f"names `{host[0]}`; leave the package host to the user's own settings")
                )
            if place := MACHINE_PATHS.search(line):
                problems.append(at(path, number, f"names `{place[0]}`; take the path from a setting or a fixture"))
    assert not problems, report(problems)


def prose_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a Markdown page that are not inside a fenced block."""
    fenced = False
    for number, line in enumerate(text_lines(path), 1):
        if MARKDOWN_FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


@cache
def anchors(path: Path) -> frozenset[str]:
    """The fragment names that a page's headings get."""
    headings = (line.lstrip("#").strip() for _, line in prose_lines(path) if line.startswith("#"))
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def test_links_between_pages_resolve() -> None:
    problems = []
    for page in (path for path in repository_files() if path.suffix == ".md"):
        for number, line in prose_lines(page):
            for target in MARKDOWN_LINK.findall(INLINE_CODE.sub("", line)):
                if target.startswith(ELSEWHERE):
                    continue
                name, _, anchor = target.partition("#")
                aim = (page.parent / name).resolve() if name else page
                if not aim.exists():
                    problems.append(at(page, number, f"links to {name}, which does not exist; repair the path"))
                elif anchor and aim.suffix == ".md" and anchor not in anchors(aim):
                    problems.append(at(page, number, f"links to #{anchor}, which no heading of {aim.name} has"))
    assert not problems, report(problems)


@pytest.mark.parametrize(("package", "most"), [("log_broker.core", 10), ("log_broker.server", 25)])
def test_folders_import_each_other_seldom_and_one_way(package: str, most: int) -> None:
    arrows = between_folders(package)
    assert len(arrows) <= most
    assert not {(there, here) for here, there in arrows} & set(arrows)


@pytest.mark.parametrize("package", ["log_broker.core", "log_broker.server"])
def test_no_more_than_two_modules_import_each_other_in_a_circle(package: str) -> None:
    assert [circle for circle in circles(imports_of(package)) if len(circle) > 2] == []
