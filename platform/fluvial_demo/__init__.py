"""
The demo of the 2013 flights from New York: its publisher, its questions, and the run of the whole path on them.

The tables are not declared here but in the worked example, a project: `project.py` says where that is.
"""
