"""
Accounts whose balances are the sum of their entries: no money is made or lost, and every past balance can be asked for.

    python -m examples.accounts

A transfer is two records in one Kafka transaction, with acks from all replicas: both count or neither does, whatever
is killed. The table keeps each version of an account with the offsets that it stood at.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from examples.program import SECONDS_MAX, Platform, Record, main
from fluvial.tables import count, state, sum_

TOPIC = "example-account-entries"
SCHEMA: Mapping[str, Any] = {
    "type": "record",
    "name": "Entry",
    "fields": [{"name": "transfer", "type": "int"}, {"name": "cents", "type": "long"}],
}
ACCOUNTS = ("bank", "ada", "bob", "cy", "dee")
TRANSFERS = 120
Transfer = tuple[int, str, str, int, bool]  # number, from, to, cents, whether it goes through
Balances = dict[str, tuple[int, int]]  # account -> cents, entries

accounts = state(
    "example_accounts", topic=TOPIC, key="account", fields={"cents": sum_("cents"), "entries": count()}, scd2=True
)


def transfers(seed: int = 278) -> Iterator[Transfer]:
    """The transfers that are tried; every eighth or so is given up half-way."""
    dice = random.Random(seed)
    for number in range(TRANSFERS):
        payer, payee = dice.sample(ACCOUNTS, 2)
        yield number, payer, payee, dice.randrange(1, 50_000), dice.random() >= 1 / 8


def carry_out(platform: Platform) -> None:
    """
    Write each transfer as a transaction of its own; one that is given up has its first record in the log already.

    Killed anywhere and started again it goes on behind the last transfer that the log holds.
    """
    encode = platform.encoder(TOPIC)
    producer = platform.producer(**{"transactional.id": f"examples-{TOPIC}", "acks": "all", "linger.ms": 0})
    producer.init_transactions(SECONDS_MAX)
    # Only now: what a killed run left open is aborted by init_transactions.
    done = max((entry["transfer"] for _, _, entry in platform.read(TOPIC)), default=-1)
    for number, payer, payee, cents, goes_through in transfers():
        if number <= done:
            continue
        producer.begin_transaction()
        producer.produce(TOPIC, encode({"transfer": number, "cents": -cents}), payer)
        if goes_through:
            producer.produce(TOPIC, encode({"transfer": number, "cents": cents}), payee)
            producer.commit_transaction(SECONDS_MAX)
        else:
            producer.flush(SECONDS_MAX)
            producer.abort_transaction(SECONDS_MAX)


def folded(entries: Iterable[Record]) -> Balances:
    """Fold entries in plain Python."""
    balances: Balances = {}
    for _, account, entry in entries:
        cents, number = balances.get(account, (0, 0))
        balances[account] = (cents + entry["cents"], number + 1)
    return balances


def as_of(platform: Platform, offset: int) -> Balances:
    """Return the balances as they stood once the record at `offset` was in, whichever offset that is."""
    found = platform.sql(
        "SELECT account, cents, entries FROM state.example_accounts "
        "WHERE _offset <= :offset AND (_end_offset IS NULL OR _end_offset > :offset)",
        offset=offset,
    )
    return {row.account: (row.cents, row.entries) for row in found.collect()}


def run(platform: Platform) -> str:
    """Transfer money, then ask for the balances now and at past offsets, and hold them against the log."""
    platform.open_topic(TOPIC, SCHEMA)
    carry_out(platform)
    platform.bring_up(accounts)
    log = list(platform.read(TOPIC))
    through = [number for number, *_, goes_through in transfers() if goes_through]
    assert [entry["transfer"] for _, _, entry in log] == [number for number in through for _ in range(2)]
    last = log[-1][0]
    for offset in (log[0][0], last // 3, last // 2, last):
        assert as_of(platform, offset) == folded(record for record in log if record[0] <= offset)
    now = as_of(platform, last)
    assert sum(cents for cents, _ in now.values()) == 0
    return (
        f"{len(through)} of {TRANSFERS} transfers went through; ada has {now['ada'][0] / 100:.2f} after offset {last}"
    )


if __name__ == "__main__":
    main(run)
