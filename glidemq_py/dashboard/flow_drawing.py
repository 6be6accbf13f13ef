"""A flow drawn as an SVG image: a tree from left to right, one row per leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from glidemq_py._operate.snapshots import FlowNode

__all__ = ["Box", "Drawing", "draw"]

_WIDTH: Final = 210
_HEIGHT: Final = 44
_GAP_X: Final = 56
_GAP_Y: Final = 14


@dataclass(frozen=True, slots=True)
class Box:
    """A job of the drawing, with the position of its upper left corner."""

    node: FlowNode
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes of the jobs, and lines from each job to those it waits for as paths of SVG."""

    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    width: int
    height: int
    box_width: int = _WIDTH
    box_height: int = _HEIGHT


def draw(root: FlowNode) -> Drawing:
    """Return the drawing of a flow. A job that several others wait for is drawn below each of them."""
    boxes: list[Box] = []
    lines: list[str] = []
    rows = 0
    # Depth first without recursion: a flow may be deeper than Python's stack.
    stack: list[tuple[FlowNode, int, bool]] = [(root, 0, False)]
    middles: list[list[int]] = [[]]
    while stack:
        node, depth, is_done = stack.pop()
        if not is_done:
            stack.append((node, depth, True))
            middles.append([])
            stack += [(child, depth + 1, False) for child in reversed(node.children)]
            continue
        below = middles.pop()
        x = depth * (_WIDTH + _GAP_X)
        if below:
            middle = (below[0] + below[-1]) // 2
        else:
            middle = rows * (_HEIGHT + _GAP_Y) + _HEIGHT // 2
            rows += 1
        boxes.append(Box(node, x, middle - _HEIGHT // 2))
        right, far = x + _WIDTH, x + _WIDTH + _GAP_X
        lines += [f"M{right} {middle} C{right + 28} {middle} {far - 28} {y} {far} {y}" for y in below]
        middles[-1].append(middle)
    width = max(box.x for box in boxes) + _WIDTH
    return Drawing(tuple(boxes), tuple(lines), width, rows * (_HEIGHT + _GAP_Y) - _GAP_Y)
