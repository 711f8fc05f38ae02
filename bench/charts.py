"""Draws charts as SVG, each in two files: for light and for dark pages.

Text is drawn in the reader's sans-serif font; the background is transparent. The numbers that are drawn come from
the caller; this file knows only shapes and colours.
"""
import math
from xml.sax.saxutils import escape

WIDTH = 760
FONT = "-apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
THEMES = {
    "light": {"text": "#1f2328", "soft": "#59636e", "grid": "#d1d9e0", "page": "#ffffff",
              "ours": "#0969da", "second": "#bc4c00", "third": "#8250df", "fourth": "#1a7f37", "floor": "#6e7781"},
    "dark": {"text": "#f0f6fc", "soft": "#9198a1", "grid": "#3d444d", "page": "#0d1117",
             "ours": "#4493f8", "second": "#f0883e", "third": "#ab7df8", "fourth": "#3fb950", "floor": "#9198a1"},
}


def number(value):
    """At most three digits that count."""
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def size_of(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


class Canvas:
    """The elements of one SVG in one theme."""

    def __init__(self, title, subtitle, theme):
        self.colors = THEMES[theme]
        self.parts = []
        self.title, self.subtitle = title, subtitle
        self.text(16, 28, title, size=17, weight=600)
        self.text(16, 49, subtitle, size=13, color="soft")

    def text(self, x, y, text, size=12, color="text", anchor="start", weight=400, turned=False):
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{self.colors[color]}" '
                          f'text-anchor="{anchor}" font-weight="{weight}"{turn}>{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, color="grid", width=1.0, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{self.colors[color]}" stroke-width="{width}"{dashed}/>')

    def rect(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.5):.1f}" height="{height:.1f}" '
                          f'rx="2" fill="{self.colors[color]}"/>')

    def path(self, points, color, dash=""):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{drawn}" fill="none" stroke="{self.colors[color]}" stroke-width="2.5"'
                          f'{dashed}/>')

    def dot(self, x, y, color):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{self.colors[color]}" '
                          f'stroke="{self.colors["page"]}" stroke-width="1"/>')

    def captions(self, y, lines):
        """Writes the lines below the drawing; returns the height of the whole."""
        for line in lines:
            self.text(16, y, line, size=11.5, color="soft")
            y += 17
        return y

    def svg(self, height):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
                f'height="{height:.0f}" role="img" aria-label="{escape(self.title)}" font-family="{FONT}">\n'
                f"<title>{escape(self.title)}. {escape(self.subtitle)}</title>\n"
                + "\n".join(self.parts) + "\n</svg>\n")


def ticks(least, most, logarithmic):
    """Round numbers that cover least to most."""
    if logarithmic:
        first, last = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
        return [10.0**power for power in range(first, last + 1)]
    step = 10 ** math.floor(math.log10(most / 4))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if most / (step * factor) <= 6)
    return [step * index for index in range(math.ceil(most / step - 1e-9) + 1)]


def label_places(wanted, gap=16):
    """Moves labels apart that would overlap; [y] in the order given."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    placed = dict(zip(order, sorted(wanted)))
    for before, after in zip(order, order[1:]):
        placed[after] = max(placed[after], placed[before] + gap)
    return [placed[index] for index in range(len(wanted))]


def curves(theme, title, subtitle, x_label, y_label, series, caption, log_y=False):
    """series: [(label, color, dashed, {size: value})]; sizes are on a logarithmic axis."""
    canvas = Canvas(title, subtitle, theme)
    left, top, right, bottom = 66, 68, WIDTH - 214, 330
    sizes = sorted({size for *_, points in series for size in points})
    values = [value for *_, points in series for value in points.values()]
    marks = ticks(min(values), max(values), log_y)
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])

    def x_of(size):
        return left + 14 + (right - left - 28) * (math.log2(size) - low) / (high - low)

    def y_of(value):
        if log_y:
            first, last = math.log10(marks[0]), math.log10(marks[-1])
            return bottom - (bottom - top) * (math.log10(value) - first) / (last - first)
        return bottom - (bottom - top) * value / marks[-1]

    for mark in marks:
        canvas.line(left, y_of(mark), right, y_of(mark))
        canvas.text(left - 8, y_of(mark) + 4, number(mark), color="soft", anchor="end")
    every = max(1, round(len(sizes) / 7))
    for size in sizes[(len(sizes) - 1) % every::every]:
        canvas.line(x_of(size), bottom, x_of(size), bottom + 5, "soft")
        canvas.text(x_of(size), bottom + 20, size_of(size), color="soft", anchor="middle")
    canvas.text((left + right) / 2, bottom + 42, x_label, color="soft", anchor="middle")
    canvas.text(20, (top + bottom) / 2, y_label, color="soft", anchor="middle", turned=True)
    ends = []
    for label, color, dashed, points in series:
        placed = [(x_of(size), y_of(value)) for size, value in sorted(points.items())]
        canvas.path(placed, color, "6 5" if dashed else "")
        for x, y in placed:
            canvas.dot(x, y, color)
        ends.append(placed[-1])
    # A label beside a point in the middle of the drawing stands above it, where no axis is.
    places = label_places([y + 4 if x > right - 40 else y - 24 for x, y in ends], 32)
    for (label, color, _, points), (x, _), y in zip(series, ends, places):
        words, value = label, number(points[max(points)])
        at = right + 10 if x > right - 40 else x - 4
        canvas.text(at, y, words, color=color, weight=600)
        canvas.text(at, y + 14, f"{value} at {size_of(max(points))}", size=11.5, color="soft")
    lowest = max([bottom + 42, *[y + 14 for y in places]])
    return canvas.svg(canvas.captions(lowest + 26, caption))


def bars(theme, title, subtitle, unit, groups, caption):
    """groups: [(heading, [(label, color, value, note)])]; a bar without a value has only its note."""
    canvas = Canvas(title, subtitle, theme)
    left, right, y = 236, WIDTH - 120, 74
    most = max(value for _, rows in groups for _, _, value, _ in rows if value is not None)
    for heading, rows in groups:
        if heading:
            canvas.text(16, y + 4, heading, size=13, weight=600)
            y += 17
        for label, color, value, note in rows:
            canvas.text(left - 10, y + 13, label, anchor="end", color="text" if color == "ours" else "soft",
                        weight=600 if color == "ours" else 400)
            end = left
            if value is not None:
                width = (right - left) * value / most
                canvas.rect(left, y + 1, width, 16, color)
                end += max(width, 1.5)
            shown = f"{number(value)} {unit}{note}".strip() if value is not None else note
            canvas.text(end + 7, y + 13, shown, size=12)
            y += 23
        y += 13
    canvas.line(left, 66, left, y - 12, "soft")
    return canvas.svg(canvas.captions(y + 12, caption))


def timeline(theme, title, subtitle, rows, most, caption):
    """rows: [(label, color, seconds or None, note)] on an axis of seconds; None goes on past the end."""
    canvas = Canvas(title, subtitle, theme)
    left, right, top = 250, WIDTH - 60, 72
    bottom = top + 42 * len(rows)

    def x_of(seconds):
        return left + (right - left) * seconds / most

    for mark in ticks(0.1, most, False):
        if mark <= most:
            canvas.line(x_of(mark), top, x_of(mark), bottom)
            canvas.text(x_of(mark), bottom + 18, number(mark) if mark else "0", color="soft", anchor="middle")
    canvas.text((left + right) / 2, bottom + 38, "seconds after the peer was stopped", color="soft", anchor="middle")
    for index, (label, color, seconds, note) in enumerate(rows):
        y = top + 42 * index
        canvas.text(left - 10, y + 19, label, anchor="end", weight=600 if color == "ours" else 400)
        if seconds is None:
            canvas.rect(left, y + 8, right - left, 9, color)
            canvas.path([(right - 2, y + 4), (right + 9, y + 12.5), (right - 2, y + 21)], color)
            canvas.text(right, y + 34, note, size=11.5, color="soft", anchor="end")
        else:
            canvas.rect(left, y + 8, x_of(seconds) - left, 9, color)
            canvas.dot(x_of(seconds), y + 12.5, color)
            canvas.text(x_of(seconds) + 10, y + 17, note, size=11.5, color="soft")
    return canvas.svg(canvas.captions(bottom + 62, caption))
