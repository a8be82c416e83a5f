"""
Which files of a table are written together, and when.
"""

from random import Random

from fluvial.delta.upkeep import FILES_MAX, target_size, written_together

MIB = 1 << 20


def test_files_of_one_size_are_written_together_once_they_are_many() -> None:
    assert written_together([], FILES_MAX) is None
    assert written_together([MIB] * FILES_MAX, FILES_MAX) is None
    assert written_together([MIB] * (FILES_MAX + 1), FILES_MAX) == 4 * MIB
    assert written_together([5 * MIB] * (FILES_MAX + 1), FILES_MAX) == 32 * MIB
    assert written_together([2048 * MIB] * 100, FILES_MAX) is None, "larger ones are large enough"


def test_a_large_file_is_left_alone_beside_small_ones() -> None:
    assert written_together([76 * MIB] + [MIB] * FILES_MAX, FILES_MAX) is None
    assert written_together([76 * MIB] + [MIB] * (FILES_MAX + 1), FILES_MAX) == 4 * MIB
    assert written_together([76 * MIB] * 16 + [6 * MIB] * 16 + [MIB] * 16, FILES_MAX) is None


def test_what_is_written_again_is_bounded() -> None:
    """Of small batches what upkeep writes is at most ten times what they wrote, and files stay few."""
    dice = Random(4)
    for scale in (MIB // 100, MIB, 10 * MIB):
        files: list[int] = []
        batches = rewritten = 0
        for _ in range(2000):
            files.append(dice.randrange(scale, 2 * scale))
            batches += files[-1]
            below = written_together(files, FILES_MAX)
            if below is not None:
                target, total = target_size(sum(files)), sum(size for size in files if size < below)
                rewritten += total
                files = [size for size in files if size >= below] + [target] * (total // target)
                files.append(total % target)
        assert rewritten < 10 * batches
        assert len([size for size in files if size < 256 * MIB]) <= 3 * FILES_MAX
