"""
The files of `infra/spark` that the code itself reads: one copy, for the cluster's operator and for the session here.
"""

from pathlib import Path


def packaged(name: str) -> Path:
    """
    The path of `infra/spark/<name>`: beside this module in an installed wheel, in `infra/spark` in a checkout.
    """
    here = Path(__file__).resolve()
    beside = here.with_name(name)
    return beside if beside.exists() else here.parents[3] / "infra" / "spark" / name
