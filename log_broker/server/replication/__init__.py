"""Copies between brokers: followers that fetch, leaders that answer them, changes of the ISR."""
