"""Having as many nodes of a local platform vote as there should be, once they run."""

from pathlib import Path

from fluvial.local.state import VOTERS, Platform


def complete_voters(data_dir: Path, platform: Platform) -> list[int]:
    """
    Have nodes vote until there are enough to survive the loss of one; return those that did not before.

    A platform that began with so many is not asked. Raises FluvialError.
    """
    if len(platform.nodes) < VOTERS or len(platform.founders) >= VOTERS:
        return []
    from fluvial.cluster.membership import add_voter
    from fluvial.cluster.picture import picture_of
    from fluvial.cluster.wire import ClusterLink
    from fluvial.local.probe import cluster_of

    added: list[int] = []
    with ClusterLink(cluster_of(data_dir, platform)) as cluster:
        picture = picture_of(cluster)
        voters = set() if picture.quorum is None else set(picture.quorum.voters)
        for node in platform.nodes:
            if len(voters) + len(added) < VOTERS and node.id not in voters:
                add_voter(cluster, picture, node.id)
                added.append(node.id)
    return added
