"""Unrolls in the making: state table, unroll slots, and the rings that hand indices between loops."""

from seedflow.rollout.lock import EventLock
from seedflow.rollout.ring import IndexRing
from seedflow.rollout.slots import SlotPool
from seedflow.rollout.state_table import StateTable
from seedflow.rollout.storage import UnrollStorage

__all__ = ["EventLock", "IndexRing", "SlotPool", "StateTable", "UnrollStorage"]
