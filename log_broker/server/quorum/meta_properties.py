"""`meta.properties`: says whose data directory it is, so that no broker takes up another's by mistake."""

from dataclasses import dataclass, replace
from pathlib import Path

from log_broker.storage.data_directory import DataDirectoryError
from log_broker.storage.files import FileSystem

FILE_NAME = "meta.properties"
_VERSION = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """
    The identity of a data directory.

    `directory_id` is drawn when it is first used. `quorum_directory_id` is under which the metadata quorum knows it:
    nothing for one of the voters that the cluster was founded with, who cannot know each other's (KIP-853).
    """

    cluster_id: str
    node_id: int
    directory_id: str = ""
    quorum_directory_id: str = ""


def read_meta_properties(files: FileSystem, data_dir: Path) -> MetaProperties | None:
    """Return what the directory says, None when it is new; raises DataDirectoryError."""
    try:
        content = files.read(data_dir / FILE_NAME)
        if content is None:
            return None
        text = content.decode()
    except (OSError, ValueError) as error:
        raise DataDirectoryError(data_dir, f"{FILE_NAME} cannot be read: {error}") from error
    lines = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
    values = {name.strip(): value.strip() for name, _, value in lines}
    try:
        return MetaProperties(
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
            directory_id=values.get("directory.id", ""),
            quorum_directory_id=values.get("quorum.directory.id", ""),
        )
    except (KeyError, ValueError) as error:
        raise DataDirectoryError(data_dir, f"{FILE_NAME} lacks or garbles {error}") from None


def write_meta_properties(files: FileSystem, data_dir: Path, properties: MetaProperties) -> None:
    """Write the file so that it is either whole or absent; raises DataDirectoryError."""
    content = (
        f"version={_VERSION}\ncluster.id={properties.cluster_id}\nnode.id={properties.node_id}\n"
        f"directory.id={properties.directory_id}\nquorum.directory.id={properties.quorum_directory_id}\n"
    )
    try:
        files.replace(data_dir / FILE_NAME, content.encode())
    except OSError as error:
        raise DataDirectoryError(data_dir, f"{FILE_NAME} cannot be written: {error.strerror}") from error


def settle_identity(
    files: FileSystem,
    data_dir: Path,
    *,
    node_id: int,
    cluster_id: str | None,
    fresh_directory_id: str,
    founds_quorum: bool,
) -> MetaProperties:
    """
    Return the identity of the directory; raises DataDirectoryError if it is another broker's.

    That of a new directory is written if its cluster is known; else its `cluster_id` is empty, to be found out.
    `founds_quorum` tells whether this is one of several voters that a new cluster begins with.
    """
    found = read_meta_properties(files, data_dir)
    if found is None:
        fresh = MetaProperties(
            cluster_id=cluster_id or "",
            node_id=node_id,
            directory_id=fresh_directory_id,
            quorum_directory_id="" if founds_quorum else fresh_directory_id,
        )
        if cluster_id:
            write_meta_properties(files, data_dir, fresh)
        return fresh
    if found.node_id != node_id:
        raise DataDirectoryError(data_dir, f"it belongs to node {found.node_id}, and this is node {node_id}")
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise DataDirectoryError(
            data_dir, f"it belongs to the cluster {found.cluster_id}, and this broker is to be of {cluster_id}"
        )
    if not found.directory_id:  # written before directories had ids; it has founded no quorum
        found = replace(found, directory_id=fresh_directory_id, quorum_directory_id=fresh_directory_id)
        write_meta_properties(files, data_dir, found)
    return found
