"""`fluvial cluster move`, `moves` and `reassign`: reassign replicas in a running cluster."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluvial.cli import completion, terminal
from fluvial.cli.cluster.cluster_status import size_text
from fluvial.cli.options import AnswerFormat, Form, with_cluster
from fluvial.config import Settings

if TYPE_CHECKING:
    from fluvial.cluster.moves import Progress
    from fluvial.cluster.picture import Picture, TopicPartition
    from fluvial.cluster.placement import Layout
    from fluvial.cluster.wire import ClusterLink

_SHOWN_MAX = 40
_BARS_MAX = 12
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?(?:/s)?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

Wait = Annotated[bool, typer.Option("--wait", help="Show progress and return when nothing is left to copy.")]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="BYTES/s",
        help="The most that each broker copies a second for this, such as 50M (default: no limit).",
        show_default=False,
    ),
]


@with_cluster
def move(
    *,
    settings: Settings,
    tps: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC[:PARTITION,…]…",
            help="Topics, or some of their partitions.",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="NODE,…", help="Nodes that are to hold each partition.", show_default=False)
    ],
    throttle: Throttle = None,
    wait: Wait = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Reassign partitions to the given nodes, one node per replica.

    The first node is the preferred leader; of several partitions, each one starts with the next node. An old replica is
    removed when the new ones are in sync, so records are as safe as before meanwhile.
    """
    from fluvial.cli.topic.partitions import partitions_of
    from fluvial.cluster.picture import TopicPartition, picture_of
    from fluvial.cluster.wire import ClusterLink
    from fluvial.kafka.admin import admin_of, describe_cluster

    nodes, rate = _nodes("--to", to), rate_of(throttle)
    wanted = [TopicPartition(*tp) for tp in partitions_of(tps, describe_cluster(settings, admin_of(settings.cluster)))]
    with ClusterLink(settings.cluster) as cluster:
        picture = picture_of(cluster)
        _require_alive("--to", nodes, picture)
        targets = {tp: _turned(nodes, at) for at, tp in enumerate(wanted)}
        targets = {tp: target for tp, target in targets.items() if picture.replicas_of(tp) != target}
        if not targets:
            terminal.say("nothing to move: every partition is already on these nodes")
            return
        if stuck := without_leader(picture, targets):
            raise stuck_error(stuck)
        before = {tp: picture.replicas_of(tp) for tp in targets}
        show_layout(before, targets, answer_format)
        _start(cluster, picture, targets, rate)
        _tell_begun(len(targets), wait=wait)
        if wait:
            _wait(settings, cluster, picture, targets)


@with_cluster
def moves(
    *,
    settings: Settings,
    wait: Wait = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Call all moves off: partitions stay with the replicas that they had.")
    ] = False,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Show reassignments in progress; when there are none left, remove a throttle that was set.
    """
    from fluvial.cluster.moves import begin, lift_throttle, progress_of
    from fluvial.cluster.picture import log_dirs_of, moves_of, picture_of
    from fluvial.cluster.wire import ClusterLink

    with ClusterLink(settings.cluster) as cluster:
        picture = picture_of(cluster)
        if cancel and picture.moves:
            begin(cluster, dict.fromkeys(picture.moves))
            terminal.say(f"{_count(len(picture.moves))}: the move was called off")
            picture = picture_of(cluster)
        under_way = moves_of(cluster)
        if wait and under_way:
            _wait(settings, cluster, picture, None)
            return
        stored = {node: log_dirs_of(cluster, broker) for node, broker in picture.brokers.items()}
        found = progress_of(under_way.values(), stored)
        if not found and lift_throttle(cluster, picture):
            terminal.say("nothing is being moved any more; the throttle was taken off")
        elif not found:
            terminal.say("nothing is being moved")
    if answer_format is Form.JSON:
        terminal.answer(json.dumps([_progress_json(each) for each in found.values()]))
        return
    terminal.table(
        ("topic", "partition", "replicas", "adding", "removing", "copied"),
        (
            (
                tp.topic,
                tp.partition,
                _words(each.move.target),
                _words(each.move.adding),
                _words(each.move.removing),
                f"{size_text(each.copied_bytes)} of {size_text(each.wanted_bytes)}",
            )
            for tp, each in found.items()
        ),
    )


@with_cluster
def reassign(
    *,
    settings: Settings,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]…",
            help="Topics to spread (default: all).",
            show_default=False,
            autocompletion=completion.topics,
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers", metavar="NODE,…", help="Nodes to spread over (default: all that are up).", show_default=False
        ),
    ] = None,
    factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            min=1,
            help="Replicas of each partition (default: as many as it has).",
            show_default=False,
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do what is shown; without it nothing changes.")] = False,
    throttle: Throttle = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Partitions that are copied at the same time.")] = 50,
    answer_format: AnswerFormat = Form.TABLE,
) -> None:
    """
    Balance replicas and leaders over nodes, for example after adding one: racks first, then the least copying.

    Shows the plan, and executes it with --execute; after an interruption run it again to continue. Reassignments in
    progress continue by themselves: `fluvial cluster moves --cancel` cancels them.
    """
    from fluvial.cluster.picture import log_dirs_of, picture_of
    from fluvial.cluster.placement import balanced, copies, moved
    from fluvial.cluster.wire import ClusterLink

    rate = rate_of(throttle)
    with ClusterLink(settings.cluster) as cluster:
        picture = picture_of(cluster)
        nodes = _nodes("--brokers", brokers) if brokers is not None else tuple(picture.brokers)
        _require_alive("--brokers", nodes, picture)
        before = _layout(picture, topics)
        after = balanced(before, nodes, picture.racks, factor=factor)
        changes = moved(before, after)
        fresh = copies(before, after)
        stored = {node: log_dirs_of(cluster, broker) for node, broker in picture.brokers.items()}
        size = sum(size_of(tp, before[tp], stored) * len(added) for tp, added in fresh.items())
        _show_plan(before, after, changes, answer_format)
        copied = sum(map(len, fresh.values()))
        terminal.say(f"{len(changes)} of {len(before)} partitions change; {copied} copies, {size_text(size)}")
        if not changes:
            return
        if not execute:
            terminal.say("nothing was changed; --execute does it")
            return
        stuck = without_leader(picture, changes)
        changes = {tp: nodes for tp, nodes in changes.items() if tp not in stuck}
        if changes:
            carry_out(settings, cluster, picture, changes, rate=rate, at_once=at_once)
        if stuck:
            raise stuck_error(stuck)


def without_leader(picture: "Picture", tps: Iterable["TopicPartition"]) -> list["TopicPartition"]:
    """Return the partitions without a replica to copy from: reassigning them would never complete."""
    return [tp for tp in tps if picture.partitions[tp].is_offline]


def stuck_error(stuck: Sequence["TopicPartition"]) -> Exception:
    """Return the error for partitions without a leader."""
    from fluvial.kafka.admin import ClusterError

    named = ", ".join(map(str, stuck[:3])) + (f" and {len(stuck) - 3} more" if len(stuck) > 3 else "")
    return ClusterError(
        f"{_count(len(stuck))} without a leader cannot be copied: {named}; "
        "start a node that has an in-sync replica of them"
    )


def carry_out(
    settings: Settings,
    cluster: "ClusterLink",
    picture: "Picture",
    changes: Mapping["TopicPartition", tuple[int, ...]],
    *,
    rate: int | None,
    at_once: int,
) -> None:
    """Execute a plan, a limited number of partitions at a time, and elect preferred leaders; raises FluvialError."""
    from fluvial.cli.cluster.elections import have_elected
    from fluvial.cluster.moves import begin, lift_throttle, throttle, watch
    from fluvial.kafka.admin import admin_of

    tps = list(changes)
    if rate is not None:
        throttle(cluster, picture, changes, rate)
    with _interruptible(), _Bars(len(tps)) as bars:
        for start in range(0, len(tps), at_once):
            part = {tp: changes[tp] for tp in tps[start : start + at_once]}
            begin(cluster, part)
            bars.begin(part)
            watch(cluster, picture.brokers, part, bars.report)
    if rate is not None:
        lift_throttle(cluster, picture)
    have_elected(admin_of(settings.cluster), tps)
    terminal.say(f"{_count(len(tps))} moved")


def _layout(picture: "Picture", topics: list[str] | None) -> "dict[TopicPartition, tuple[int, ...]]":
    from fluvial.cluster.moves import topics_of
    from fluvial.kafka.admin import UnknownTopicError

    known = topics_of(picture.partitions)
    for topic in topics or ():
        if topic not in known:
            raise UnknownTopicError(topic, known)
    return {tp: picture.replicas_of(tp) for tp in picture.partitions if not topics or tp.topic in topics}


def size_of(tp: "TopicPartition", replicas: Sequence[int], stored: Mapping[int, Any]) -> int:
    """Return the bytes of a partition, of the largest of its replicas."""
    return max((dirs.sizes.get(tp, 0) for node in replicas if (dirs := stored.get(node)) is not None), default=0)


def _start(
    cluster: "ClusterLink", picture: "Picture", targets: Mapping["TopicPartition", tuple[int, ...]], rate: int | None
) -> None:
    from fluvial.cluster.moves import begin, throttle

    if rate is not None:
        throttle(cluster, picture, targets, rate)
    begin(cluster, targets)


def _wait(
    settings: Settings,
    cluster: "ClusterLink",
    picture: "Picture",
    targets: Mapping["TopicPartition", tuple[int, ...]] | None,
) -> None:
    from fluvial.cli.cluster.elections import have_elected
    from fluvial.cluster.moves import lift_throttle, watch
    from fluvial.cluster.picture import moves_of
    from fluvial.kafka.admin import admin_of

    tps = list(moves_of(cluster) if targets is None else targets)
    with _interruptible(), _Bars(len(tps)) as bars:
        bars.begin(tps)
        watch(cluster, picture.brokers, None if targets is None else tps, bars.report)
    if not moves_of(cluster):
        lift_throttle(cluster, picture)
    have_elected(admin_of(settings.cluster), tps)
    terminal.say(f"{_count(len(tps))} moved")


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        terminal.say(
            "reassignments in progress continue; `fluvial cluster moves` shows them, --cancel cancels them, "
            "the same command again continues with the rest"
        )
        raise


class _Bars:
    """Progress on stderr: a bar for all partitions, and one for each of those that have most left to copy."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=terminal.stderr(), transient=True)
        self._all = self._progress.add_task("all", total=total, amount=f"0 of {total}")
        self._total = total
        self._done = 0
        self._tasks: dict[Any, Any] = {}
        self._open: set[Any] = set()

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, tps: Any) -> None:
        """Note partitions whose move has begun."""
        self._open |= set(tps)

    def report(self, found: Mapping["TopicPartition", "Progress"]) -> None:
        """Show the progress of each reassignment; one that is no longer listed has completed."""
        self._done += len(self._open - found.keys())
        self._open &= found.keys()
        self._progress.update(self._all, completed=self._done, amount=f"{self._done} of {self._total}")
        largest = sorted(found.values(), key=lambda each: each.copied_bytes - each.wanted_bytes)[:_BARS_MAX]
        shown = {each.move.tp: each for each in largest}
        for tp in self._tasks.keys() - shown.keys():
            self._progress.remove_task(self._tasks.pop(tp))
        for tp, each in shown.items():
            amount = f"{size_text(each.copied_bytes)} of {size_text(each.wanted_bytes)}"
            if tp not in self._tasks:
                self._tasks[tp] = self._progress.add_task(str(tp), total=1.0, amount=amount)
            self._progress.update(self._tasks[tp], completed=each.share, amount=amount)


def _tell_begun(count: int, *, wait: bool) -> None:
    if not wait:
        terminal.say(f"{_count(count)} in progress; `fluvial cluster moves` shows the progress")


def _nodes(flag: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"{flag} {text!r}: write the ids of nodes, such as 1,2,3")
    nodes = tuple(map(int, words))
    if len(set(nodes)) < len(nodes):
        raise typer.BadParameter(f"{flag} {text!r}: a node is listed twice")
    return nodes


def _require_alive(flag: str, nodes: Sequence[int], picture: "Picture") -> None:
    from fluvial.kafka.admin import ClusterError

    absent = [node for node in nodes if node not in picture.brokers]
    if absent:
        raise ClusterError(
            f"{flag}: node {_words(absent)} is not up; the brokers that are: {_words(picture.brokers) or 'none'}"
        )


def rate_of(text: str | None) -> int | None:
    """Read a number of bytes a second, None where none is given."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    rate = 0 if found is None else int(float(found[1]) * _FACTORS[found[2].upper()])
    if rate < 1:
        raise typer.BadParameter(f"--throttle {text!r}: write bytes a second, such as 1000000, 500K or 50M")
    return rate


def _turned(nodes: tuple[int, ...], by: int) -> tuple[int, ...]:
    by %= len(nodes)
    return nodes[by:] + nodes[:by]


def show_layout(before: "Layout", targets: "Layout", answer_format: Form) -> None:
    """Print where partitions are and where they are to be."""
    if answer_format is Form.JSON:
        terminal.answer(json.dumps(_layout_json(before, targets)))
        return
    tps = list(targets)
    terminal.table(
        ("topic", "partition", "from", "to"),
        ((*tp, _words(before[tp]), _words(targets[tp])) for tp in tps[:_SHOWN_MAX]),
    )
    if len(tps) > _SHOWN_MAX:
        terminal.say(f"and {len(tps) - _SHOWN_MAX} more; --format json lists all")


def _show_plan(before: "Layout", after: "Layout", changes: "Layout", answer_format: Form) -> None:
    from fluvial.cluster.placement import spread_of

    now, then = spread_of(before, ()), spread_of(after, ())
    nodes = sorted({*now, *then})
    if answer_format is Form.JSON:
        spread = [
            {
                "node": node,
                **{f"{name}_now": getattr(now.get(node), name, 0) for name in ("replicas", "leaders")},
                **{f"{name}_then": getattr(then.get(node), name, 0) for name in ("replicas", "leaders")},
            }
            for node in nodes
        ]
        terminal.answer(json.dumps({"nodes": spread, "changes": _layout_json(before, changes)}))
        return
    show_layout(before, changes, answer_format)
    rows = []
    for node in nodes:
        was, will = now.get(node, (0, 0)), then.get(node, (0, 0))
        rows.append((node, f"{was[0]} → {will[0]}", f"{was[1]} → {will[1]}"))
    terminal.table(("node", "replicas", "preferred leader of"), rows)


def _layout_json(before: "Layout", after: "Layout") -> list[dict[str, Any]]:
    return [
        {"topic": tp.topic, "partition": tp.partition, "from": list(before[tp]), "to": list(after[tp])} for tp in after
    ]


def _progress_json(each: "Progress") -> dict[str, Any]:
    move = each.move
    return {
        "topic": move.tp.topic,
        "partition": move.tp.partition,
        "replicas": list(move.target),
        "adding": list(move.adding),
        "removing": list(move.removing),
        "copied_bytes": each.copied_bytes,
        "wanted_bytes": each.wanted_bytes,
    }


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _words(nodes: Any) -> str:
    return ", ".join(map(str, nodes))
