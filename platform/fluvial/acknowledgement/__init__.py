"""
Acknowledging records one by one, in any order, on top of a group's ordinary offsets.
"""

from fluvial.acknowledgement.consumer import Delivery, SelectiveConsumer

__all__ = ["Delivery", "SelectiveConsumer"]
