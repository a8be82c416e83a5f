"""
Records that broke their topic's contract: what is in quarantine, and how they go back once they are repaired.

Works with a stock client on any cluster whose brokers put records aside in this form.
"""
