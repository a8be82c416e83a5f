"""A secured broker under handshakes, slow strangers, certificates that change and a user who goes."""

from pathlib import Path

from siege_run import besiege


def test_what_wears_a_secured_broker_out_leaves_nothing_behind(tmp_path: Path) -> None:
    told: list[str] = []
    assert besiege(tmp_path, 300, 60, told.append) == [], told
