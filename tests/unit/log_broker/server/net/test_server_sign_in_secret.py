"""Challenges for names that nobody has: equal on all nodes, and not to be foretold by who knows the cluster's id."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

from log_broker.config.broker import BrokerConfig
from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.listeners import SaslConfig
from log_broker.core.security.mechanism import Challenge
from log_broker.core.security.scram import fake_credential
from log_broker.core.security.users import Nobody
from log_broker.server.net.sign_in import SignInService

NAME = "SCRAM-SHA-256"


def salt_of(cluster_id: str, **settings: str) -> str:
    """Ask a node for a name that nobody has."""
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    config = BrokerConfig(data_dir=Path("unused")).with_settings(texts)
    node = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        cluster_id=cluster_id,
        static_config=config,
        users=Nobody(),
        is_serving=True,
    )
    service = SignInService(node)  # type: ignore[arg-type]
    try:
        answer = service.mechanisms(SaslConfig(mechanisms=(NAME,)))[NAME]().step(b"n,,n=nobody,r=nonce")
    finally:
        service.close()
    assert isinstance(answer, Challenge)
    found = re.search(rb",s=([^,]+),", answer.data)
    assert found is not None
    return found[1].decode()


async def test_nodes_that_share_a_secret_answer_alike() -> None:
    given = salt_of("one", fluvial_sign_in_secret="drawn once")
    assert given == salt_of("one", fluvial_sign_in_secret="drawn once")
    assert given != salt_of("one", fluvial_sign_in_secret="another")
    assert salt_of("one") == salt_of("one") != salt_of("two")


async def test_who_knows_the_clusters_id_does_not_know_the_challenge() -> None:
    without = salt_of("one")
    with_secret = salt_of("one", fluvial_sign_in_secret="drawn once")
    assert with_secret != without
    # The secret alone decides: nothing that clients are told is in it.
    assert with_secret == salt_of("two", fluvial_sign_in_secret="drawn once")


def test_the_secret_is_shown_to_nobody() -> None:
    config = BrokerConfig(data_dir=Path("unused")).with_settings({"fluvial.sign.in.secret": "drawn once"})
    assert "drawn once" not in repr(config)
    assert config.security.shown() == {"fluvial.sign.in.secret": None}
    assert fake_credential("a", ScramMechanism.SHA_256, b"1") != fake_credential("a", ScramMechanism.SHA_256, b"2")
