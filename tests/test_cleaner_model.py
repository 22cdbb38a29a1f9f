"""What a cleaner's tick takes, against a naive model: two hot bases and two cold ones, with and without a capacity."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Cleaner, GroupIndex
from nixl_index.watermarks import Volume
from tests.support import write

Watch = Callable[..., GroupIndex]

BASES = 4


def naive(index: GroupIndex, bases: list[Path], wanted: dict[frozenset[int], float]) -> list[str]:
    """Oldest first, every group with a shard where something is still wanted."""
    numbers = {str(base): number for number, base in enumerate(bases)}
    left, expected = dict(wanted), []
    for group in sorted(index, key=lambda group: (group.recency_ns, group.key)):
        shards = [(numbers[str(Path(shard.path).parents[1])], shard.disk_bytes) for shard in group.shards]
        if any(left[hot] > 0 and any(base in hot for base, _ in shards) for hot in left):
            expected.append(group.key)
            for hot in left:
                left[hot] -= sum(size for base, size in shards if base in hot)
    return expected


@pytest.mark.parametrize("with_capacity", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_what_goes_is_what_a_naive_model_picks(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch, seed: int, with_capacity: bool
) -> None:
    """The volumes are made up (files of this size fill no disk); all else is real."""
    chance = random.Random(seed)
    bases = [tmp_path / f"disk{number}" for number in range(BASES)]
    for base in bases:
        base.mkdir()
    for page in range(60):
        spread = bases[: chance.randint(1, BASES)]
        for rank in range(chance.randint(1, 6)):
            name, size = f"{page:03}_m_{rank}_8", chance.randrange(1, 40_000)
            write(chance.choice(spread) / f"{chance.randrange(256):02x}" / name, b"x" * size, 1_000 + page // 3)
    index = watch(*bases)
    index.touch([f"{page:03}_m" for page in chance.sample(range(60), 5)], 2_000 * 10**9)

    if with_capacity:
        capacity = int(index.nbytes / chance.uniform(0.8, 1.2))
        cleaner = Cleaner(index, 80, 70, capacity=capacity)
        wanted = {frozenset(range(BASES)): index.nbytes - 70 * capacity / 100}
    else:
        cleaner = Cleaner(index, 80, 70)
        wanted = {frozenset({number}): chance.randrange(1, 200_000) for number in chance.sample(range(BASES), 2)}
        # A volume of ten times what is wanted, used to 80 percent: a tenth of it has to go.
        volumes = [Volume(hot, 10 * size, 2 * size) for hot, size in wanted.items()]
        volumes += [Volume(frozenset({cold}), 1000, 201) for cold in range(BASES) if frozenset({cold}) not in wanted]
        monkeypatch.setattr(cleaner, "measure", lambda problems: volumes)

    expected = naive(index, bases, wanted)
    assert expected
    assert [group.key for group in cleaner.tick().evicted] == expected
