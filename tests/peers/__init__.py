"""Other people's software that runs beside ours in tests and benchmarks."""
