"""Pictures of the report as inline SVG that takes its colours from the page, so that dark and light both work."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

_WIDTH, _HEIGHT = 360, 230  # small, so that text keeps its size on a phone
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 18, 12, 38
NUM_COLORS = 6  # classes c0..c5 of the template


@dataclass(frozen=True)
class Series:
    """One line or cloud of points (x, y); `style` is "line", "dashed" or "points"."""

    label: str
    points: Sequence[tuple[float, float]]
    color: int = 0
    style: str = "line"


@dataclass(frozen=True)
class Axis:
    """How numbers become positions."""

    label: str
    log: bool = False
    percent: bool = False
    ticks: tuple[float, ...] = field(default=())  # chosen where not given

    def scale(self, value: float) -> float:
        """The number on the axis' own scale."""
        return math.log10(value) if self.log else value

    def format(self, value: float) -> str:
        """A tick's text."""
        if self.percent:
            return f"{100 * value:.3g}%"
        return f"{value:.4g}"


def draw_chart(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    """A figure with axes, ticks, a legend where there is more than one series, and a text for screen readers."""
    drawn = [each for each in series if len(each.points)]
    if not drawn:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>nothing was recorded</p></figure>"
    values = np.array([(x.scale(a), y.scale(b)) for each in drawn for a, b in each.points])
    frame = _Frame(x, y, _pad(values[:, 0], 0.0), _pad(values[:, 1], 0.06))
    parts = [frame.draw_axes(), *(frame.draw_series(each) for each in drawn)]
    label = f"{title}: {y.label} against {x.label}, for {', '.join(each.label for each in drawn)}"
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{_draw_legend(drawn)}</figure>"


class _Frame:
    """The drawing area and its two scales."""

    def __init__(self, x: Axis, y: Axis, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self._x, self._y, self._x_range, self._y_range = x, y, x_range, y_range

    def _at(self, a: float, b: float) -> tuple[float, float]:
        """Scaled numbers -> position."""
        (x0, x1), (y0, y1) = self._x_range, self._y_range
        across = _LEFT + (a - x0) / (x1 - x0) * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - (b - y0) / (y1 - y0) * (_HEIGHT - _TOP - _BOTTOM)

    def draw_axes(self) -> str:
        """Grid lines, tick texts, axis labels."""
        parts = []
        for value, text in _ticks(self._y, self._y_range, 5):
            _, down = self._at(self._x_range[0], value)
            parts.append(f'<path class="grid" d="M{_LEFT} {down:.1f}H{_WIDTH - _RIGHT}"/>')
            parts.append(f'<text x="{_LEFT - 5}" y="{down + 3.5:.1f}" text-anchor="end">{text}</text>')
        for value, text in _ticks(self._x, self._x_range, 5):
            across, _ = self._at(value, self._y_range[0])
            parts.append(f'<text x="{across:.1f}" y="{_HEIGHT - _BOTTOM + 14}" text-anchor="middle">{text}</text>')
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        height = (_TOP + _HEIGHT - _BOTTOM) / 2
        bottom = _HEIGHT - _BOTTOM
        parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(self._x.label)}</text>')
        parts.append(
            f'<text transform="translate(11 {height}) rotate(-90)" text-anchor="middle">{escape(self._y.label)}</text>'
        )
        return "".join(parts)

    def draw_series(self, series: Series) -> str:
        """A line, or dots."""
        dots_at = [self._at(self._x.scale(a), self._y.scale(b)) for a, b in series.points]
        color = f"c{series.color % NUM_COLORS}"
        if series.style == "points":
            dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in dots_at)
            return f'<path class="dots {color}" d="{dots}"/>'
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in dots_at)
        style = " dashed" if series.style == "dashed" else ""
        if len(dots_at) == 1:
            style, path = " single", f"{path}h0"
        return f'<path class="line {color}{style}" d="{path}"/>'


def draw_bars(title: str, rows: Sequence[tuple[str, float, float]], value_label: str, base_label: str) -> str:
    """Horizontal bars (label, value, base) with a mark at each base; values may be negative."""
    low = min(0.0, *(min(value, base) for _, value, base in rows))
    high = max(1.0, *(max(value, base) for _, value, base in rows))
    left, right, step = 8, _WIDTH - 50, 40

    def across(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    parts = []
    for index, (label, value, base) in enumerate(rows):
        down = index * step + 18
        start, width = min(across(0), across(value)), abs(across(value) - across(0))
        parts.append(f'<text x="{left}" y="{down - 4}">{escape(label)}</text>')
        parts.append(f'<rect class="track" x="{left}" y="{down}" width="{right - left}" height="13"/>')
        parts.append(f'<rect class="bar" x="{start:.1f}" y="{down}" width="{width:.1f}" height="13"/>')
        parts.append(f'<path class="mark" d="M{across(base):.1f} {down - 2}v17"/>')
        parts.append(f'<text x="{right + 6}" y="{down + 10.5}">{value:.3f}</text>')
    told = "; ".join(f"{label} {value:.3f}, {base_label} {base:.3f}" for label, value, base in rows)
    size = f"0 0 {_WIDTH} {len(rows) * step + 2}"
    svg = f'<svg viewBox="{size}" role="img" aria-label="{escape(f"{title}: {told}")}">{"".join(parts)}</svg>'
    legend = (
        f'<p class="legend"><span class="key bar"></span>{value_label} <span class="key mark"></span>{base_label}</p>'
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}{legend}</figure>"


def draw_heatmap(title: str, weights: np.ndarray, label: str) -> str:
    """A matrix as an inlined PNG with its colour scale; the extreme hundredths share the end colours."""
    low, high = np.percentile(weights, (1, 99))
    high = high if high > low else low + 1e-6
    picture = _encode_png(weights, low, high)
    ramp = _encode_png(np.linspace(low, high, 128)[None], low, high)
    return (
        f'<figure class="heatmap"><figcaption>{escape(title)}</figcaption>'
        f'<img src="{picture}" alt="{escape(label)}" width="{weights.shape[1]}" height="{weights.shape[0]}">'
        f'<p class="legend">{low:.3g}<img class="ramp" src="{ramp}" alt="colour scale" width="128" height="1">'
        f"{high:.3g}</p></figure>"
    )


def _encode_png(values: np.ndarray, low: float, high: float) -> str:
    from matplotlib.image import imsave

    stream = io.BytesIO()
    imsave(stream, values, vmin=low, vmax=high, cmap="viridis", format="png")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def _draw_legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    keys = [
        f'<span class="item"><span class="key c{each.color % NUM_COLORS} {each.style}"></span>'
        f"{escape(each.label)}</span>"
        for each in series
    ]
    return f'<p class="legend">{" ".join(keys)}</p>'


def _pad(values: np.ndarray, share: float) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9:
        return low - 0.5, high + 0.5
    return low - share * (high - low), high + share * (high - low)


def _ticks(axis: Axis, span: tuple[float, float], count: int) -> list[tuple[float, str]]:
    """(scaled position, text) of round numbers within the span."""
    low, high = span
    if axis.ticks:
        values = list(axis.ticks)
    elif axis.log:
        values = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
        inside = [value for value in values if low <= math.log10(value) <= high]
        values = [value for value in inside if str(value).strip("0.")[0] == "1"] if len(inside) > 7 else inside
    else:
        raw = (high - low) / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
        values = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(axis.scale(v), axis.format(v)) for v in values if low - 1e-9 <= axis.scale(v) <= high + 1e-9]
