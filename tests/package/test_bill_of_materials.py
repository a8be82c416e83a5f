"""The bill of materials names what the locks pin, once each, and is the same whenever it is made."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from package_build import ROOT


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("bill") / "dist" / "fluvial.cdx.json"
    subprocess.run([sys.executable, "infra/sbom.py", str(into)], cwd=ROOT, check=True, timeout=60)
    return into


def test_each_line_of_the_locks_is_one_component(bill: Path) -> None:
    components = json.loads(bill.read_text())["components"]
    lock = (ROOT / "requirements.lock").read_text()
    jars = "".join((ROOT / "infra" / "spark" / name).read_text() for name in ("jars.lock", "s3-jars.lock"))
    packages = [
        line.partition(";")[0].strip(" \\").split("==") for line in lock.splitlines() if re.match(r"\w.*==", line)
    ]
    pinned = {f"pkg:pypi/{re.sub('[-_.]+', '-', name.partition('[')[0]).lower()}@{it}" for name, it in packages}
    coordinates = re.findall(r"^(\S+):(\S+):(\S+) sha256", jars, re.MULTILINE)
    pinned |= {f"pkg:maven/{group}/{name}@{version}" for group, name, version in coordinates}
    assert len(components) == len(pinned)
    assert {each["purl"] for each in components} == pinned
    hashes = [each["hashes"][0]["content"] for each in components if "hashes" in each]
    assert hashes == re.findall(r"sha256:(\w{64})$", jars, re.MULTILINE)


def test_who_needs_a_component_is_said(bill: Path) -> None:
    scopes = {each["name"]: each["scope"] for each in json.loads(bill.read_text())["components"]}
    assert {scopes[name] for name in ("confluent-kafka", "starlette", "anyio")} == {"required"}
    assert {scopes[name] for name in ("pyspark", "dagster", "numpy", "delta-spark_4.0_2.13")} == {"optional"}
    assert {scopes[name] for name in ("pytest", "mypy", "ruff", "hypothesis")} == {"excluded"}


def test_a_second_bill_has_the_same_bytes(bill: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    subprocess.run([sys.executable, "infra/sbom.py", str(again)], cwd=ROOT, check=True, timeout=60)
    assert again.read_bytes() == bill.read_bytes()


def test_the_module_is_the_command() -> None:
    asked = [
        subprocess.run(
            [sys.executable, "-m", f"fluvial{end}", "topic", "--help"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for end in ("", ".cli.main")
    ]
    assert asked[0] == asked[1] != ""
