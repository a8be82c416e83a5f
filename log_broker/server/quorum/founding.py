"""
With whom a node begins: the voters it was told of, and its own replica of the metadata log.

Only the first start of a cluster asks: from then on the log says who votes.
"""

import base64
import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

from log_broker.config.broker import BrokerConfig
from log_broker.core.cluster.image import METADATA_TOPIC, ClusterImage
from log_broker.core.cluster.records import BrokerRegistered, decode
from log_broker.core.cluster.snapshot import encode_image
from log_broker.core.raft.replica import RaftConfig
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.ports import HasPeers
from log_broker.server.process.ports import Cluster, HasAddress, HasMachine, Process
from log_broker.server.quorum.authority import Authority
from log_broker.server.quorum.meta_properties import MetaProperties, read_meta_properties, settle_identity
from log_broker.server.quorum.quorum import Quorum, QuorumReplica
from log_broker.storage.files import FileSystem
from log_broker.storage.metadata_upgrade import upgrade

_log = logging.getLogger(__name__)

METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
FETCH_WAIT_MS_MAX = 500
OBSERVER_FETCH_WAIT_MS_MAX = 1_000
_VOTER = re.compile(r"(\d+)@(.+):(\d+)")
_SERVER = re.compile(r"(.+):(\d+)")
_FIRST_SERVER_ID = -2  # Kafka's numbers for servers whose ids nobody knows


class FoundingHost(Cluster, HasAddress, HasMachine, HasPeers, Process, Protocol):
    """What the first start of a node asks of it."""

    @property
    def authority(self) -> Authority: ...

    @property
    def cluster_id(self) -> str: ...

    def controller_address_of(self, node_id: int) -> str | None:
        """Return where a registered broker is reached as a controller, None where nobody knows."""
        ...


def fresh_cluster_id() -> str:
    """Return 16 random bytes as Kafka writes ids."""
    return base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")


def voters_of(config: BrokerConfig) -> list[Voter]:
    """Return the voters that `controller.quorum.voters` names, by id; raises BrokerError(INVALID_CONFIG)."""
    voters = []
    for text in config.controller_quorum_voters:
        found = _VOTER.fullmatch(text)
        if found is None:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"controller.quorum.voters: {text!r} is not id@host:port")
        node_id, host, port = found.groups()
        voters.append(Voter(key=ReplicaKey(int(node_id), ""), host=host.strip("[]"), port=int(port)))
    voters.sort(key=lambda voter: voter.key)
    if len({voter.key for voter in voters}) < len(voters):
        raise BrokerError(ErrorCode.INVALID_CONFIG, "controller.quorum.voters: a node stands there twice")
    return voters


def is_voter_of(config: BrokerConfig) -> bool:
    """Whether this node is among the voters that it was told of; raises BrokerError(INVALID_CONFIG)."""
    return any(voter.key.node_id == config.node_id for voter in voters_of(config))


def identity_of(files: FileSystem, config: BrokerConfig) -> MetaProperties:
    """Return who this node is, as its data directory says; a new one is given its ids. Raises DataDirectoryError."""
    alone = not config.controller_quorum_voters and not config.controller_quorum_bootstrap_servers
    known = read_meta_properties(files, config.data_dir)
    fresh = fresh_cluster_id() if alone and known is None else None
    return settle_identity(
        files,
        config.data_dir,
        node_id=config.node_id,
        cluster_id=config.cluster_id or fresh,
        fresh_directory_id=uuid4().hex,
        founds_quorum=is_voter_of(config),
    )


def open_quorum(node: FoundingHost, identity: MetaProperties) -> Quorum:
    """
    Return this node's replica, not started yet.

    Raises BrokerError(INVALID_CONFIG), and for a metadata log of before the quorum OSError or
    UnknownMetadataRecordError.
    """
    config = node.static_config
    key = ReplicaKey(config.node_id, identity.quorum_directory_id)
    place = QuorumReplica(key, config.data_dir / METADATA_DIRECTORY, *node.controller_endpoint)
    alone = VoterSet([Voter(key=key, host=place.host, port=place.port)])
    least_timeout_ms = min(config.controller_quorum_fetch_timeout_ms, config.controller_quorum_request_timeout_ms)
    if upgrade(node.machine.files, place.directory, alone, lambda values: _image_of(values, config)):
        _log.info("the metadata in %s is a quorum's log now, of which this node is the only voter", place.directory)
    return Quorum(
        place,
        RaftConfig(
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
            fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
            request_timeout_ms=config.controller_quorum_request_timeout_ms,
            snapshot_entries=config.fluvial_metadata_snapshot_entries,
            snapshot_trailing_entries=config.fluvial_metadata_snapshot_entries // 10,
            fetch_wait_ms_max=max(1, min(FETCH_WAIT_MS_MAX, config.controller_quorum_fetch_timeout_ms // 4)),
            # Half is left for the answer's way: who has not heard from its leader in time looks for another.
            observer_fetch_wait_ms_max=max(1, min(OBSERVER_FETCH_WAIT_MS_MAX, least_timeout_ms // 2)),
        ),
        _founders(config, place),
        node.authority,
        files=node.machine.files,
        pool=node.machine.pool(node.loop),
        cluster_id=lambda: node.cluster_id or None,
        broker_address=node.controller_address_of,
        unix_s=lambda: node.clock_ms() // 1000,
        dialer=node.controllers.dialer,
    )


def _image_of(values: Iterable[bytes], config: BrokerConfig) -> bytes:
    """Return the image that records from before the quorum come to, as it was understood then."""
    image = ClusterImage(defaults=config)
    for value in values:
        record = decode(value)
        image.replay(record)
        if isinstance(record, BrokerRegistered):
            # Each registration began new leader epochs, which are in the logs of the partitions.
            for topic, index, partition in list(image.led_by(record.node_id)):
                now = list(image.topics[topic.name].partitions)
                now[index] = replace(partition, leader_epoch=partition.leader_epoch + 1)
                image.topics[topic.name] = replace(image.topics[topic.name], partitions=tuple(now))
    return encode_image(image)


def _founders(config: BrokerConfig, place: QuorumReplica) -> VoterSet:
    voters = voters_of(config)
    servers = sorted(config.controller_quorum_bootstrap_servers)
    if voters:
        return VoterSet(voters)
    if servers:
        return VoterSet(_server(text, number) for number, text in enumerate(servers))
    if "controller" not in config.process_roles:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            "a node that is no controller needs controller.quorum.voters or controller.quorum.bootstrap.servers",
        )
    return VoterSet([Voter(key=place.key, host=place.host, port=place.port)])


def _server(text: str, number: int) -> Voter:
    """Return a server as a voter that nobody can be: the replica asks it for the leader like any other."""
    found = _SERVER.fullmatch(text)
    if found is None:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"controller.quorum.bootstrap.servers: {text!r} is not host:port")
    key = ReplicaKey(_FIRST_SERVER_ID - number, "")
    return Voter(key=key, host=found[1].strip("[]"), port=int(found[2]))
