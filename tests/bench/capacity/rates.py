"""How often what fails, and for how long; each with its public source."""

from dataclasses import dataclass

YEAR_SECONDS = 365.25 * 86_400
HOUR = 3_600.0
MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """
    Failures of one machine, disk or rack a year, and how long they last. Zero of all is a cluster that never fails.

    - disks: Backblaze, Drive Stats: 1.57 % of the hard disks of 2024.
    - machines: Barroso and Hoelzle, The Datacenter as a Computer (2009): a failure every 2.5 hours among 2,000
      machines, 99.84 % available. Most are short: nine of ten for ten minutes on average here (assumed); the tenth gets
      what is left of the time that a machine is not available.
    - racks: Dean (2008): 20 racks of a cluster of 1,800 machines in its first year, with 40 machines each; six hours
      are said there of a power distribution unit. Top-of-rack switches alone: Gill et al. (2011), about 5 % a year.
    - power cut: Cidon et al., Copysets (2013): about 1 % of the machines do not come back from one.
    """

    disk: float = 0.0157
    machine: float = 8_766 / 2.5 / 2_000
    available: float = 0.9984
    short_share: float = 0.9
    short_seconds: float = 10 * MINUTE
    rack: float = 20 / (1_800 / 40)
    rack_seconds: float = 6 * HOUR
    rolls: float = 12.0  # restarts of all brokers, one after the other: assumed, a release a month
    restart_seconds: float = 30.0  # assumed: stop in order, start, and a machine that is not idle
    not_back_share: float = 0.01  # of the machines, after a power cut of all

    @property
    def long_seconds(self) -> float:
        """How long an outage lasts on average that is not short."""
        down = (1 - self.available) * YEAR_SECONDS / self.machine
        return (down - self.short_share * self.short_seconds) / (1 - self.short_share)


NOTHING_FAILS = Rates(disk=0, machine=0, rack=0, rolls=0)
