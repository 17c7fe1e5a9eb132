"""Costs of drafts in tests."""

from __future__ import annotations

from starsd_edge.telemetry.service_model import ServiceCost


def draft_cost(pass_s: float, level_s: float = 0.0, session_s: float = 0.0, node_s: float = 0.0) -> ServiceCost:
    """S(b, shape), seconds: of a pass, of each level, of each session in it, of each node."""
    return ServiceCost(fixed_s=pass_s, per_session_s=session_s, per_level_s=level_s, per_node_s=node_s)
