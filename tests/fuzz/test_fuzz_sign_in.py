"""What strangers send before they sign in reaches no handler; a user gets in all the while."""

from pathlib import Path

from fuzz_sign_in import UnderFire

CONNECTIONS = 400
SEED = 20_281


def test_nothing_reaches_a_handler_before_sign_in(tmp_path: Path) -> None:
    assert UnderFire(tmp_path).fire(CONNECTIONS, SEED) == []
