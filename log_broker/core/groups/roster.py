"""The members of a classic group, counted so that no event has to look at all of them."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from log_broker.core.groups.protocol import Member, Protocol
from log_broker.core.groups.timers import Timers


class Roster:
    """
    Members by their ids. What is counted here changes only through these methods.

    Always: `joined` and `synced` are the numbers of members that wait with a Join and with a Sync, `_speakers` those of
    members that know a protocol; every value of `statics` is a member; `timers` has the deadline of every member that
    may expire and of every id in `invited`.
    """

    __slots__ = ("_speakers", "invited", "joined", "members", "statics", "synced", "timers")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}  # instance id -> member id
        self.invited: dict[str, int] = {}  # ids given out and not yet come back with -> until when they may (KIP-394)
        self.joined = 0
        self.synced = 0
        self.timers = Timers()
        self._speakers: Counter[str] = Counter()

    def replace_all(self, members: Iterable[Member]) -> None:
        """Take these members, of whom none waits, in the place of all that were there."""
        for name in self.members:
            self.timers.drop(name)
        self.members = {}
        self.statics = {}
        self.joined = self.synced = 0
        self._speakers.clear()
        for member in members:
            self.put(member)

    def put(self, member: Member) -> None:
        """Let a member in, which does not wait yet."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        self._speakers.update({name for name, _ in member.protocols})
        self._watch(member)

    def take_out(self, member: Member) -> None:
        """Let a member go; whoever waits has been answered."""
        self.wait_with_join(member, None)
        self.wait_with_sync(member, None)
        self._forget_protocols(member)
        self.timers.drop(member.member_id)
        del self.members[member.member_id]
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]

    def invite(self, member_id: str, until_ms: int) -> None:
        """Give out an id; whoever has it is a member once it joins with it."""
        self.invited[member_id] = until_ms
        self.timers.set(member_id, until_ms)

    def uninvite(self, member_id: str) -> None:
        del self.invited[member_id]
        self.timers.drop(member_id)

    def hear(self, member: Member, deadline_ms: int) -> None:
        """Have a member expire at another time."""
        member.deadline_ms = deadline_ms
        self._watch(member)

    def wait_with_join(self, member: Member, token: Any) -> None:
        """Have a member wait for the answer to a Join; None: it waits no more."""
        self.joined += (token is not None) - (member.join_token is not None)
        member.join_token = token
        self._watch(member)

    def wait_with_sync(self, member: Member, token: Any) -> None:
        """Have a member wait for the answer to a Sync; None: it waits no more."""
        self.synced += (token is not None) - (member.sync_token is not None)
        member.sync_token = token
        self._watch(member)

    def change_protocols(self, member: Member, protocols: tuple[Protocol, ...]) -> None:
        self._forget_protocols(member)
        member.protocols = protocols
        self._speakers.update({name for name, _ in protocols})

    def all_others_know(self, name: str, member_id: str) -> bool:
        """Whether every member but this one, which may be none, knows a protocol."""
        member = self.members.get(member_id)
        if member is None:
            return self._speakers[name] == len(self.members)
        knows = any(name == known for known, _ in member.protocols)
        return self._speakers[name] - knows == len(self.members) - 1

    def _forget_protocols(self, member: Member) -> None:
        for name in {name for name, _ in member.protocols}:
            self._speakers[name] -= 1
            if not self._speakers[name]:
                del self._speakers[name]

    def _watch(self, member: Member) -> None:
        """A member that waits for an answer is not asked for heartbeats, unless it has never been in a generation."""
        if member.is_new or not member.is_waiting:
            self.timers.set(member.member_id, member.deadline_ms)
        else:
            self.timers.drop(member.member_id)
