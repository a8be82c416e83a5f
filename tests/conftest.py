"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail: no test here asserts how long something takes.
settings.register_profile("fluvial", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fluvial")
