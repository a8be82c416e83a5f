"""Tables with what their topics' logs hold behind them: the newest truth, without a run or a JVM."""
