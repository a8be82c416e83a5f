"""The metadata quorum, brokers that register, and what they forward."""
