"""
The events of an auction house as Nexmark's generator makes them: of 50 events one person, three auctions and 46 bids.

Half of the bids go to the hot auction of the moment, three quarters of them are by the hot bidder, and three quarters
of the auctions are the hot seller's; the others are of those around. Some auctions and persons are named shortly before
they are there. Event time goes on by the rate alone, so no event comes late. The same seed gives the same events,
however many are taken at once.
"""

import string
from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal

Kind = Literal["person", "auction", "bid"]
Event = Mapping[str, Any]

PERSONS, AUCTIONS, BIDS = 1, 3, 46
TOTAL = PERSONS + AUCTIONS + BIDS
# Ten seconds before eight in the morning, so that a hundred seconds have two of q14's times of the day.
BEGINNING_MS = int(datetime(2025, 3, 1, 7, 59, 50, tzinfo=UTC).timestamp() * 1000)

_FIRST_ID, _FIRST_CATEGORY, _CATEGORIES = 1000, 10, 5
_HOT_AUCTIONS, _HOT_PERSONS = 2, 4
"""One of so many is not of the hot auction, bidder or seller."""
_HOT_EVERY = 100
"""The hot one is the first of so many."""
_AUCTIONS_IN_FLIGHT, _PERSONS_ACTIVE, _LEAD = 100, 1000, 10
_PERSON_BYTES, _AUCTION_BYTES, _BID_BYTES = 60, 300, 70
"""What fills an event up to Nexmark's sizes, on average."""

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000


class Generator:
    """All events from the first on, `rate` of them in a second of event time."""

    def __init__(self, *, seed: int = 7, rate: int = 10_000) -> None:
        self._random = Random(seed)
        self._rate = rate
        self._number = 0
        self._letters = "".join(self._random.choices(string.ascii_lowercase, k=1 << 16))

    def take(self, count: int) -> dict[Kind, list[Event]]:
        """The next events, by their kind."""
        taken: dict[Kind, list[Event]] = {"person": [], "auction": [], "bid": []}
        for _ in range(count):
            place = self._number % TOTAL
            if place < PERSONS:
                taken["person"].append(self._person())
            elif place < PERSONS + AUCTIONS:
                taken["auction"].append(self._auction())
            else:
                taken["bid"].append(self._bid())
            self._number += 1
        return taken

    @property
    def _now(self) -> int:
        return BEGINNING_MS + self._number * 1000 // self._rate

    @property
    def _last_person(self) -> int:
        return self._number // TOTAL

    @property
    def _last_auction(self) -> int:
        epoch, place = divmod(self._number, TOTAL)
        return max(0, epoch * AUCTIONS + min(place - PERSONS, AUCTIONS - 1))

    def _person(self) -> Event:
        choice = self._random.choice
        return {
            "id": _FIRST_ID + self._last_person,
            "name": f"{choice(_FIRST_NAMES)} {choice(_LAST_NAMES)}",
            "emailAddress": f"{self._text(7)}@{self._text(5)}.com",
            "creditCard": " ".join(f"{self._below(10_000):04d}" for _ in range(4)),
            "city": choice(_CITIES),
            "state": choice(_STATES),
            "dateTime": self._now,
            "extra": self._extra(_PERSON_BYTES),
        }

    def _auction(self) -> Event:
        initial, now = self._price(), self._now
        # As long as it takes to have the auctions in flight anew, on average.
        horizon = _AUCTIONS_IN_FLIGHT * TOTAL // AUCTIONS * 1000 // self._rate
        return {
            "id": _FIRST_ID + self._last_auction,
            "itemName": self._text(20),
            "description": self._text(100),
            "initialBid": initial,
            "reserve": initial + self._price(),
            "dateTime": now,
            "expires": now + 1 + self._below(max(2 * horizon, 1)),
            "seller": self._someone(hot=0),
            "category": _FIRST_CATEGORY + self._below(_CATEGORIES),
            "extra": self._extra(_AUCTION_BYTES),
        }

    def _bid(self) -> Event:
        last = self._last_auction
        if self._below(_HOT_AUCTIONS):
            auction = last - last % _HOT_EVERY
        else:
            least = max(last - _AUCTIONS_IN_FLIGHT, 0)
            auction = least + self._below(last - least + 1 + _LEAD)
        channel, shown = self._channel()
        return {
            "auction": _FIRST_ID + auction,
            "bidder": self._someone(hot=1),
            "price": self._price(),
            "channel": channel,
            "url": f"https://www.nexmark.com/{shown}/item.htm?query=1",
            "dateTime": self._now,
            "extra": self._extra(_BID_BYTES),
        }

    def _channel(self) -> tuple[str, str]:
        """A channel, and what the address on it is made of."""
        if self._below(2):
            hot = self._below(len(_HOT_CHANNELS))
            return _HOT_CHANNELS[hot], self._letters[hot * 20 : hot * 20 + 17]
        number = self._below(_CHANNELS)
        return f"channel-{number}", self._letters[number : number + 17]

    def _someone(self, *, hot: int) -> int:
        """A person: mostly the one at the place `hot` of the last hundred, or else one of those who are active."""
        last = self._last_person
        if self._below(_HOT_PERSONS):
            return _FIRST_ID + last - last % _HOT_EVERY + hot
        active = min(last + 1, _PERSONS_ACTIVE)
        return _FIRST_ID + last + 1 - active + self._below(active + _LEAD)

    def _price(self) -> int:
        """From a dollar to a million, in cents, cheap ones as often as dear ones."""
        return round(10 ** (self._random.random() * 6) * 100)

    def _extra(self, size: int) -> str:
        return self._text(size * 4 // 5 + self._below(size * 2 // 5))

    def _text(self, length: int) -> str:
        first = self._below(len(self._letters) - length)
        return self._letters[first : first + length]

    def _below(self, end: int) -> int:
        return int(self._random.random() * end)
