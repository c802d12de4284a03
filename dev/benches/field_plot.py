"""The scatter plot of the field bench: recall over the bytes held, with names on the points."""

from collections.abc import Sequence
from itertools import product
from math import cos, pi, sin
from pathlib import Path
from typing import NamedTuple

SLOTS = {"retention": "C0", "selection": "C3", "schedule": "C2", "storage": "C1"}  # with colours
RADII = 8, 16, 28, 42, 58, 78, 100, 130  # pixels between a point and its name
DIRECTIONS = 16
TICKS = 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1
PANELS = {"given walk": "recall", "own walk": "own_recall"}


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: "Box") -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.bottom < other.top
            and other.bottom < self.top
        )

    def inside(self, other: "Box") -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.bottom <= self.bottom
            and self.top <= other.top
        )


def placed(
    points: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], frame: Box
) -> list[Box]:
    """A place for each point's name, `sizes` wide and high: inside the frame, on no point and on no
    other name, as near as there is room. Points with the closest neighbours choose first.
    """
    marks = [Box(x - 6, y - 6, x + 6, y + 6) for x, y in points]

    def room(number: int) -> float:
        x, y = points[number]
        return min(
            (abs(x - a) + abs(y - b) for i, (a, b) in enumerate(points) if i != number), default=0
        )

    places: dict[int, Box] = {}
    for number in sorted(range(len(points)), key=room):
        choices = [
            beside(points[number], sizes[number], radius, 2 * pi * turn / DIRECTIONS)
            for radius, turn in product(RADII, range(DIRECTIONS))
        ]
        taken = [*marks, *places.values()]
        free = (
            box
            for box in choices
            if box.inside(frame) and not any(box.meets(other) for other in taken)
        )
        places[number] = next(free, choices[0])
    return [places[number] for number in range(len(points))]


def beside(
    point: tuple[float, float], size: tuple[float, float], radius: float, angle: float
) -> Box:
    """A name's box whose nearest edge lies `radius` from the point."""
    (x, y), (width, height) = point, size
    centre_x = x + cos(angle) * (radius + width / 2)
    centre_y = y + sin(angle) * (radius + height / 2)
    return Box(
        centre_x - width / 2, centre_y - height / 2, centre_x + width / 2, centre_y + height / 2
    )


def draw(rows: list[dict], slots: dict[str, str], path: Path):
    """One panel for each walk that was measured; `slots` is the slot of each policy, by name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = {
        title: [row for row in rows if row[key] is not None and row["bytes_share"]]
        for title, key in PANELS.items()
    }
    panels = {title: shown for title, shown in panels.items() if shown}
    if not panels:  # of a run without its stage
        return
    figure = Figure(figsize=(10, 5.4 * len(panels)), dpi=90, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    every = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (title, shown) in zip(every, panels.items()):
        scatter(axes, shown, PANELS[title], slots)
        axes.set(title=title, xscale="log", ylabel="recall")
        axes.grid(alpha=0.25, which="both")
        axes.margins(0.09)
        axes.set_xlabel("bytes held, of Full's")
        axes.set_xticks(TICKS, map(str, TICKS))
    every[0].legend(
        handles=[Line2D([], [], marker="o", ls="", color=c, label=s) for s, c in SLOTS.items()],
        loc="best",
        fontsize="small",
    )
    canvas.draw()
    for axes, (title, shown) in zip(every, panels.items()):
        name_points(axes, shown, PANELS[title], canvas.get_renderer())
    figure.savefig(path)


def scatter(axes, rows: list[dict], key: str, slots: dict[str, str]):
    """The points, with their intervals."""
    for row in rows:
        colour = SLOTS[slots[row["policy"]]]
        axes.plot(row["bytes_share"], row[key], "o", color=colour, markersize=6, zorder=3)
        interval = row[f"{key}_low"], row[f"{key}_high"]
        axes.plot([row["bytes_share"]] * 2, interval, color=colour, alpha=0.3, lw=1.5)


def name_points(axes, rows: list[dict], key: str, renderer):
    """The names, each with a line to its point where it had to go farther off."""
    texts = [axes.text(0, 0, row["policy"].replace("_", " "), fontsize=9) for row in rows]
    points = [axes.transData.transform((row["bytes_share"], row[key])) for row in rows]
    extents = [text.get_window_extent(renderer) for text in texts]
    frame = Box(*axes.get_window_extent(renderer).extents)
    boxes = placed(points, [(extent.width + 4, extent.height) for extent in extents], frame)
    to_data = axes.transData.inverted().transform
    for text, point, box in zip(texts, points, boxes):
        text.set_position(to_data((box.left + 2, box.bottom + 2)))
        end = min(max(point[0], box.left), box.right), min(max(point[1], box.bottom), box.top)
        if abs(end[0] - point[0]) + abs(end[1] - point[1]) > 2 * RADII[0]:
            axes.plot(*zip(to_data(point), to_data(end)), color="0.6", lw=0.7, zorder=1)
