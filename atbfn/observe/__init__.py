"""Seeing inside a function that calls operators: its steps, and what its checks found."""

from atbfn.observe.checkpoint import Check, CheckpointError, Node, Report, checkpoint
from atbfn.observe.intermediates import Steps, intermediates

__all__ = ["Check", "CheckpointError", "Node", "Report", "Steps", "checkpoint", "intermediates"]
