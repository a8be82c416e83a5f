"""What the newest versions are compared with: the lock's, by the name that a package index knows."""

from newest_versions import LOCK, differences, locked_versions


def test_versions_are_compared_with_those_of_the_lock() -> None:
    lock = "a-b==1.0 \\\n    --hash=sha256:00\nc[extra]==2.1 \\\nd==3 ; python_version < '3.12' \\\nd==4 \\\n"
    locked = locked_versions(lock)
    assert locked == {"a-b": ["1.0"], "c": ["2.1"], "d": ["3", "4"]}
    assert differences(locked, {"a-b": "1.0", "c": "2.2", "d": "4", "e": "5", "fluvial": "0.1.0"}) == [
        "c: 2.2 (locked: 2.1)",
        "e: 5 (locked: no)",
    ]


def test_the_lock_is_read_whole() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert sum(map(len, locked_versions(text).values())) == sum(
        not line.startswith((" ", "#")) for line in text.splitlines() if line
    )
