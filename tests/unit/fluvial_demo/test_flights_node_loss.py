"""A broker of the demo is killed only where others have its copies."""

from pathlib import Path

import pytest
from rich.console import Console

from fluvial.local.state import Platform
from fluvial_demo.node_loss import NodeLoss, NodeLossError


@pytest.mark.parametrize("brokers", [None, 1, 2])
def test_a_node_is_killed_only_where_others_have_its_copies(brokers: int | None, tmp_path: Path) -> None:
    if brokers is not None:
        Platform.planned(brokers=brokers, port=9092, registry_port=8081).save(tmp_path)
    with pytest.raises(NodeLossError, match="--brokers 3"):
        NodeLoss(tmp_path, "events", Console(quiet=True))


def test_three_brokers_can_do_without_one(tmp_path: Path) -> None:
    Platform.planned(brokers=3, port=9092, registry_port=8081).save(tmp_path)
    NodeLoss(tmp_path, "events", Console(quiet=True)).settle()
