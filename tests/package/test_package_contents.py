"""What the wheel and the sdist hold, and that the same tree gives the same bytes."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from importlib import import_module
from pathlib import Path

import pytest
from package_build import EPOCH, ROOT, build

from hatch_build import SOURCES, ReadmeHook, compile_source, compiled_name, standing_alone

README = ROOT / "README.md"
HOME = "https://code.example/fluvial"


def tracked(*folders: str) -> set[str]:
    """The files of the repository under these folders, those that are about to be committed too."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}


def metadata_of(wheel: Path) -> tuple[dict[str, list[str]], str]:
    """The fields of METADATA, and the long description."""
    (name,) = (name for name in names_in(wheel) if name.endswith(".dist-info/METADATA"))
    message = Parser().parsestr(zipfile.ZipFile(wheel).read(name).decode())
    return {field: message.get_all(field, []) for field in message}, message.get_payload()


def about_folder(wheel: Path) -> str:
    return next(name.partition("/")[0] for name in names_in(wheel) if ".dist-info/" in name)


def test_the_wheel_holds_the_packages_and_the_worked_example(wheel: Path) -> None:
    sys.path.insert(0, str(ROOT / "platform"))
    from fluvial_demo.project import PARTS

    code = {
        name.removeprefix("platform/") for name in tracked("log_broker", "platform") if name != "platform/README.md"
    }
    example = {f"fluvial_demo/project/{name}" for part in PARTS for name in tracked(part)}
    spark = {f"fluvial/spark/{Path(name).name}" for name in tracked("infra/spark") if not name.endswith(".md")}
    found = names_in(wheel)
    about = {name for name in found if ".dist-info/" in name}
    compiled = set() if wheel.name.endswith("none-any.whl") else {str(compiled_name(each)) for each in SOURCES}
    assert found - about == code | example | spark | compiled
    assert {name.partition("/")[2] for name in about} == {
        *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }


def test_what_can_be_compiled_here_is(wheel: Path, tmp_path: Path) -> None:
    if os.environ.get("FLUVIAL_PURE") == "1" or compile_source(ROOT, SOURCES[0], tmp_path) is None:
        assert wheel.name.endswith("py3-none-any.whl")
        return
    assert "-cp311-abi3-" in wheel.name
    assert "Tag: cp311-abi3-" in zipfile.ZipFile(wheel).read(f"{about_folder(wheel)}/WHEEL").decode()
    for name in ("log_broker.records._walk", "log_broker.server.process._disk_threads"):
        assert import_module(name).__file__ == str(ROOT / f"{name.replace('.', '/')}.abi3.so"), "of make setup"


@pytest.mark.parametrize("without", [{"FLUVIAL_PURE": "1"}, {"CC": "/nowhere/cc"}, {"CC": "false"}])
def test_without_a_compiler_the_wheel_is_one_for_every_platform(
    without: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in without.items():
        monkeypatch.setenv(name, value)
    pure = build(ROOT, "wheel", tmp_path)
    assert pure.name.endswith("py3-none-any.whl")
    assert not names_in(pure) & {str(compiled_name(each)) for each in SOURCES}
    check = (
        "from log_broker.records import compiled, readable; from log_broker.server.process import sync_pool;"
        "print(compiled.walk, readable.check_readable.__module__, sync_pool.compiled)"
    )
    shown = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(pure)!r}, *{sys.path!r}]; {check}"],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert shown.stdout == "None log_broker.records.readable None\n"


def test_the_sdist_holds_what_the_wheel_is_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("log_broker", "platform", "infra/spark", "pipelines", "schemas", "dagster_project")
    alone = {"CHANGELOG.md", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"}
    assert found == tracked(*folders) | alone | {"PKG-INFO", ".gitignore"}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_second_build_has_the_same_bytes(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first: Path = request.getfixturevalue(kind)
    assert digest(build(ROOT, kind, tmp_path)) == digest(first)


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert digest(build(source, "wheel", tmp_path)) == digest(wheel)


def test_times_are_those_of_the_build(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert {member.mtime for member in archive.getmembers()} == {int(EPOCH)}


def test_the_metadata_say_what_it_is(wheel: Path) -> None:
    fields, _ = metadata_of(wheel)
    assert fields["License-Expression"] == ["Apache-2.0"]
    assert fields["License-File"] == ["LICENSE"]
    assert fields["Author"] == ["The maintainers of fluvial"]
    assert {"kafka for pytest", "kafka without docker", "pytest"} <= set(fields["Keywords"][0].split(","))
    assert "Framework :: Pytest" in fields["Classifier"]


def test_pyspark_and_delta_are_the_pair_that_the_jars_are_for(wheel: Path) -> None:
    needs = {need.partition(";")[0] for need in metadata_of(wheel)[0]["Requires-Dist"]}
    first_line = (ROOT / "infra" / "spark" / "jars.lock").read_text().splitlines()[0]
    pair = re.findall(r"(pyspark|delta-spark) (\d[\d.]*\d)", first_line)
    assert {need for need in needs if need.startswith(("pyspark", "delta-spark"))} == {"==".join(each) for each in pair}


def test_the_description_needs_nothing_beside_it(wheel: Path) -> None:
    """As long as there is no public repository: a link into one would lead nowhere, and its pictures are not seen."""
    fields, text = metadata_of(wheel)
    assert fields["Description-Content-Type"] == ["text/markdown"]
    assert "mermaid" not in text
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert "![" not in text
    assert "Producers write to the log by the Kafka protocol" in text
    assert 'pip install "fluvial[all]"' in text
    assert text.count("\n## ") == README.read_text().count("\n## ")


def test_with_a_public_repository_each_link_and_picture_is_absolute() -> None:
    text = standing_alone(README.read_text(), HOME, "1.2.3")
    assert re.findall(r"\]\((?!https?:|#)", text) == []
    targets = re.findall(rf"\]\({HOME}/(blob|raw)/v1\.2\.3/([^)#]+)", text)
    assert len(targets) > 15
    assert {kind for kind, _ in targets} == {"blob", "raw"}
    assert [name for _, name in targets if not (ROOT / name).exists()] == []
    assert {Path(name).suffix for kind, name in targets if kind == "raw"} == {".png"}


def test_the_address_of_the_repository_becomes_urls(tmp_path: Path) -> None:
    hook = ReadmeHook(str(ROOT), {"home": HOME})
    metadata = {"version": "1.2.3"}
    hook.update(metadata)
    urls = metadata["urls"]
    assert urls["Source"] == HOME  # type: ignore[index]
    assert urls["Changelog"] == f"{HOME}/blob/v1.2.3/CHANGELOG.md"  # type: ignore[index]


def test_the_readme_has_no_diagram_that_an_index_shows_as_text() -> None:
    text = README.read_text()
    assert re.findall(r"^```(?!sh$|python$|toml$|$).*", text, re.MULTILINE) == []
    assert {name for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text) if (ROOT / name).exists()} == {
        "docs/images/data-flow.png",
        "docs/images/tutorial.png",
    }
