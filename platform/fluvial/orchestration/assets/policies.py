"""How the asset of a table is run and watched: one value, mapped over all tables or given for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import dagster as dg

from fluvial.orchestration.assets.pipes import Submit
from fluvial.tables import Declaration, DeclarationError, History, Pipeline

RETRIES = dg.RetryPolicy(max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""For the faults that pass: a broker that restarts, a commit that another writer won."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """
    What Dagster does with a table's asset beside materialising it.

    `partitions` are stretches of time: ranges of offsets of a history, the windows that begin in them of a pipeline's
    table with tumbling or hopping windows. `pool` limits how many runs of the asset go
    on at once, as the instance says for that pool; it is the table's own unless named. `owners` replace those of the
    contract, to whose `tags` and `links` (by the names to show) those here are added. With `submit` the Spark driver is
    a process of its own.
    """

    retry: dg.RetryPolicy | None = RETRIES
    freshness: dg.FreshnessPolicy | None = None
    automation: dg.AutomationCondition[dg.AssetKey] | None = None
    partitions: dg.TimeWindowPartitionsDefinition | None = None
    pool: str | None = None
    submit: Submit | None = None
    group: str | None = None
    owners: tuple[str, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    links: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def check(self, declaration: Declaration) -> None:
        """Raise DeclarationError when the table cannot be run in this way."""
        if self.partitions is None or isinstance(declaration, History):
            return
        if not isinstance(declaration, Pipeline) or not declaration.has_time_windows:
            raise DeclarationError(
                f"{declaration.table} cannot be partitioned by time: its rows are not each of one stretch of time, as "
                "those of a history or of a pipeline with tumbling or hopping windows are: leave `partitions` out, "
                "and make parts of it again by `fluvial table replay`"
            )

    def pool_of(self, declaration: Declaration) -> str:
        """Return the pool that the asset's runs share."""
        return self.pool or declaration.table

    @property
    def link_metadata(self) -> dict[str, dg.MetadataValue[str | None]]:
        """The links as Dagster shows them."""
        return {name: dg.MetadataValue.url(address) for name, address in self.links.items()}
