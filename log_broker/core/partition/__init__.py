"""One partition on one broker: appends, acknowledgements, the ISR, producers, transactions."""
