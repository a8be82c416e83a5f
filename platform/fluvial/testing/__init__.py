"""What users' own tests may use: a simulated cluster that fails as a seed tells it to."""

from log_broker.sim.scenario import FAULTS, ScenarioError, SimulatedCluster, simulate

__all__ = ["FAULTS", "ScenarioError", "SimulatedCluster", "simulate"]
