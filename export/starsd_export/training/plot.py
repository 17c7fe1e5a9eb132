"""A picture of a training: the loss falling, the tokens per round rising."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starsd_export.training.loop import Report

PLOT_NAME = "training.svg"
_WIDTH, _HEIGHT, _MARGIN = 640, 260, 50


def write_plot(reports: Sequence[Report], path: Path) -> None:
    """An SVG with both curves over the updates."""
    updates = [report.update for report in reports]
    curves = (
        ("loss", "#b5523b", [report.loss for report in reports], False),
        ("tokens per round", "#2f6f8f", [report.tokens_per_round for report in reports], True),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_MARGIN} {_MARGIN / 2}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}V{_MARGIN / 2}" fill="none" '
        'stroke="#999"/>',
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 14}" text-anchor="middle">updates (to {updates[-1]})</text>',
    ]
    for name, colour, values, right in curves:
        low, high = min(values), max(values)
        points = " ".join(
            f"{_across(update, updates):.1f},{_up(value, low, high):.1f}"
            for update, value in zip(updates, values, strict=True)
        )
        x, anchor = (_WIDTH - _MARGIN + 4, "start") if right else (_MARGIN - 4, "end")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<text x="{x}" y="{_up(value, low, high):.1f}" fill="{colour}" text-anchor="{anchor}">{value:.2f}</text>'
            for value in {low, high}
        ]
        edge, side = (_WIDTH - 4, "end") if right else (4, "start")
        parts.append(f'<text x="{edge}" y="14" fill="{colour}" text-anchor="{side}">{name}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="ascii")


def _across(update: int, updates: Sequence[int]) -> float:
    span = max(1, updates[-1] - updates[0])
    return _MARGIN + (update - updates[0]) / span * (_WIDTH - 2 * _MARGIN)


def _up(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return _HEIGHT - _MARGIN - share * (_HEIGHT - 1.5 * _MARGIN)
