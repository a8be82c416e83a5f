"""The metadata quorum alone in simulation."""
