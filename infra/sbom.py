"""
The bill of materials, CycloneDX 1.6 as JSON, of what `requirements.lock` and the locks of jars in `spark/` pin.

    python infra/sbom.py dist/fluvial.cdx.json

A component is `required` by the core, `optional` with the extras, or `excluded`: for developing alone. The same locks
give the same bytes: there is neither a time nor a random number in it. What needs what is read from the packages that
are installed, which `make setup` installs from the lock.
"""

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
JARS = tuple(ROOT / "infra" / "spark" / name for name in ("jars.lock", "s3-jars.lock"))


def bill() -> dict[str, Any]:
    """Return the bill of materials."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = needed_by(project["dependencies"])
    everything = core | needed_by([f"{project['name']}[all]", *project["optional-dependencies"]["all"]])
    # A package may be there in two versions, for older and newer Pythons.
    pinned = re.findall(r"^([\w.-]+)(?:\[.*\])?==([^\s;\\]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    components = [
        package(name, version, "required" if name in core else "optional" if name in everything else "excluded")
        for name, version in sorted((canonicalize_name(name), version) for name, version in pinned)
    ]
    for line in (line for lock in JARS for line in lock.read_text(encoding="utf-8").splitlines()):
        if not line.startswith("#"):
            coordinates, _, checksum = line.partition(" sha256:")
            components.append(jar(*coordinates.split(":"), checksum))
    product = {"type": "application", "name": project["name"], "version": project["version"]}
    product |= {"bom-ref": f"pkg:pypi/{project['name']}@{project['version']}"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([product, components])).urn,
        "version": 1,
        "metadata": {"component": product | {"licenses": [{"license": {"id": project["license"]}}]}},
        "components": components,
    }


def needed_by(requirements: Iterable[str]) -> set[str]:
    """Return the names of the packages that these requirements bring, directly or not, on this platform."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in metadata.requires(name) or []]
        found.add(name)
    return found


def package(name: str, version: str, scope: str) -> dict[str, Any]:
    """Return the component of a Python package."""
    where = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": where, "name": name, "version": version, "scope": scope, "purl": where}


def jar(group: str, name: str, version: str, checksum: str) -> dict[str, Any]:
    """Return the component of a jar, which Spark needs."""
    where = f"pkg:maven/{group}/{name}@{version}"
    about = {"type": "library", "bom-ref": where, "group": group, "name": name, "version": version}
    return about | {"scope": "optional", "hashes": [{"alg": "SHA-256", "content": checksum}], "purl": where}


if __name__ == "__main__":
    into = Path(sys.argv[1])
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(bill(), indent=2) + "\n", encoding="utf-8")
