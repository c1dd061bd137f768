"""Loss against time as an SVG drawing."""

from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 150, 40, 50
# The colours of crates/chart: go-back-N and selective repeat look the same in every chart of the project.
COLORS = {"rc, no loss": "#6b7280", "sr-nack": "#e08e0b", "xp": "#a3622a", "xp, no loss": "#c9a27e"}
OTHER = "#d1495b"


def smooth(values, weight=0.8):
    """An exponential average: single batches are noisy."""
    out = []
    for value in values:
        out.append(value if not out else weight * out[-1] + (1 - weight) * value)
    return out


def draw(title, rows, origin):
    """A line for each row, with its seconds and losses by step. `origin`: the command and the date."""
    lines = [([step["seconds"] for step in row["steps"]], smooth([step["loss"] for step in row["steps"]])) for row in rows]
    most_x = max((xs[-1] for xs, _ in lines), default=1.0)
    all_y = [y for _, ys in lines for y in ys] or [0.0, 1.0]
    low, high = min(all_y), max(max(all_y), min(all_y) + 1e-9)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x, y):
        return LEFT + x / most_x * width, TOP + (high - y) / (high - low) * height

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
             f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>']
    for tick in range(6):
        (x, _), (_, y) = place(most_x * tick / 5, low), place(0, low + (high - low) * tick / 5)
        parts.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + height}" stroke="#ddd"/>')
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + width}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + height + 18}" text-anchor="middle">{most_x * tick / 5:.3g}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{low + (high - low) * tick / 5:.2f}</text>')
    parts.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 10}" text-anchor="middle">seconds</text>')
    parts.append(f'<text x="{WIDTH - 10}" y="{HEIGHT - 10}" text-anchor="end" font-size="10" fill="#667085">{escape(origin)}</text>')
    for index, (row, (xs, ys)) in enumerate(zip(rows, lines)):
        color = COLORS.get(row["name"], OTHER)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(x, y) for x, y in zip(xs, ys)))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        y = TOP + 16 + 20 * index
        parts.append(f'<line x1="{LEFT + width + 12}" y1="{y}" x2="{LEFT + width + 32}" y2="{y}" stroke="{color}" stroke-width="3"/>')
        parts.append(f'<text x="{LEFT + width + 38}" y="{y + 4}">{escape(row["name"])}</text>')
    return "\n".join([*parts, "</svg>", ""])
