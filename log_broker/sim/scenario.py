"""
Somebody's own code against a simulated cluster: an asyncio scenario that speaks to it with a stock client.

The scenario and its clients run in virtual time on a loop of their own, so minutes of waiting cost nothing and a seed
is the same run again. What they cannot use is what leaves the loop: threads, real sockets, real time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from log_broker.core.cluster.controller import UNSET
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.peers import PeerLink
from log_broker.sim.kernel.kernel import Action
from log_broker.sim.kernel.nemesis import KINDS, Fault, Nemesis, draw_faults
from log_broker.sim.world.cluster import Cluster
from log_broker.wire.apis import ApiKey

T = TypeVar("T")

SECOND_US = 1_000_000
STORY_LINES = 60
# Some clients stamp records with a clock that they took hold of when they were imported: the real one.
SETTINGS = {"log.message.timestamp.after.max.ms": str(2**63 - 1)}
FAULTS = tuple(kind for kind in KINDS if kind not in {"ambush", "lose disk"})


class ScenarioError(AssertionError):
    """A scenario went wrong; `story` is the end of what happened, and the seed tells it again."""

    def __init__(self, seed: int, reason: str, story: tuple[str, ...]) -> None:
        super().__init__(f"seed {seed}: {reason}\n" + "\n".join(story))
        self.seed = seed
        self.story = story


class SimulatedCluster:
    """What a scenario sees of its cluster. Brokers are 0 … n-1."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._undo: list[Action] = []

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self._cluster.bootstrap)

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(self._cluster.machines)

    def say(self, what: str) -> None:
        """Add a line to the story, which a failure prints."""
        self._cluster.kernel.trace("scenario", what)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = UNSET,
        replication_factor: int = UNSET,
        config: Mapping[str, str] = {},
    ) -> str:
        """Make a topic, as soon as there are brokers enough for it, and return its name; raises BrokerError."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "assignments": (),
            "configs": [{"name": key, "value": value} for key, value in config.items()],
        }
        values = {"topics": [topic], "timeout": 5_000, "validate_only": False}
        tries = 0
        while True:
            link = PeerLink(self._cluster.bootstrap[tries % len(self.brokers)], client_id="scenario")
            tries += 1
            try:
                answer = (await link.ask(ApiKey.CREATE_TOPICS, 5, values)).topics[0]
            except BrokerError:
                await asyncio.sleep(0.2)
                continue
            finally:
                link.close()
            error = ErrorCode(answer.error_code)
            if error is ErrorCode.NONE or (error is ErrorCode.TOPIC_ALREADY_EXISTS and tries > 1):
                return name
            if error not in _NOT_YET:
                raise BrokerError(error, answer.error_message or "")
            await asyncio.sleep(0.2)

    async def leader_of(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition, as soon as one does."""
        while True:
            for address, machine in self._cluster.machines.items():
                runtime = None if machine.broker is None else machine.broker.logs.get(topic, partition)
                if runtime is not None and runtime.is_leader:
                    return address
            await asyncio.sleep(0.05)

    # Faults

    def kill(self, broker: int) -> None:
        """End a broker's process as SIGKILL does; what it wrote stays with its system."""
        self._cluster.machines[broker].kill()

    def cut_power(self, broker: int) -> None:
        """Take a machine's power: what its disk has not synced is gone, or torn."""
        self._cluster.machines[broker].cut_power()

    def start(self, broker: int) -> None:
        """Start a broker that does not run."""
        self._cluster.machines[broker].start()

    def fault(self, kind: str, *brokers: int, amount: float = 0.5) -> Action:
        """
        Begin a fault of one of FAULTS, and return what ends it.

        `amount` in 0 … 1 says how bad, for kinds that know degrees: `isolate` cuts both ways below one half.
        """
        cluster = self._cluster
        undo = KINDS[kind](cluster, [cluster.machines[broker] for broker in brokers], amount)
        if undo is None:
            return lambda: None
        self._undo.append(undo)

        def end() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                undo()

        return end

    def heal(self) -> None:
        """End every fault that `fault` began, and start every broker that does not run."""
        undo, self._undo = self._undo, []
        for each in undo:
            each()
        self._cluster.start()


_NOT_YET = frozenset(
    {
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


def simulate(
    scenario: Callable[[SimulatedCluster], Awaitable[T]],
    *,
    seed: int = 0,
    brokers: int = 3,
    faults: Iterable[str] = (),
    faults_count: int = 10,
    faults_seconds: float = 20.0,
    config: Mapping[str, str] = {},
    seconds_max: float = 600.0,
) -> T:
    """
    Run a scenario and return what it returns; raises what it raises, or ScenarioError.

    With `faults`, `faults_count` of these kinds are drawn from the seed and come about during the first
    `faults_seconds`; each lasts a few seconds at most. `config` holds broker settings by Kafka's names. A scenario that
    has not ended after `seconds_max` virtual seconds has failed, and so has one in which a broker raised an exception.
    """
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ValueError(f"no such faults: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    cluster = Cluster(seed, brokers=brokers, settings={**SETTINGS, **config}, trace_lines_max=STORY_LINES)
    kernel = cluster.kernel

    def check() -> None:
        if cluster.failures:
            raise cluster.failures[0]

    kernel.after_event = check
    with cluster.running():
        cluster.start()
        nemesis = Nemesis(cluster, _drawn(cluster, list(faults), faults_count, int(faults_seconds * SECOND_US)))
        kernel.at(int(faults_seconds * SECOND_US), nemesis.heal)
        tasks: list[asyncio.Task[T]] = []

        async def run() -> T:
            return await scenario(SimulatedCluster(cluster))

        cluster.client_loop.run(lambda: tasks.append(cluster.client_loop.create_task(run())))
        try:
            if not kernel.run_until(int(seconds_max * SECOND_US), tasks[0].done):
                raise ScenarioError(seed, f"it has not ended after {seconds_max:.0f} s", tuple(kernel.story()))
        except AssertionError as error:
            if isinstance(error, ScenarioError):
                raise
            raise ScenarioError(seed, str(error), tuple(kernel.story())) from error
        raised = tasks[0].exception()
        if raised is None:
            return tasks[0].result()
        raised.add_note(f"in a simulation of seed {seed}, which ended so:\n" + "\n".join(kernel.story()))
        raise raised


def _drawn(cluster: Cluster, kinds: list[str], count: int, until_us: int) -> list[Fault]:
    if not kinds:
        return []
    return draw_faults(
        cluster.kernel.stream("nemesis"),
        list(cluster.machines),
        count=count,
        until_us=max(until_us - SECOND_US, SECOND_US),
        lasts_us=(SECOND_US // 20, 3 * SECOND_US),
        kinds=dict.fromkeys(kinds, 1),
    )
