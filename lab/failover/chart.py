"""Throughput over time, as an SVG: a panel for every program and fault."""

WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 120, 60, 64, 52
FIRST, BACKUP, AXIS = "#1f77b4", "#ff7f0e", "#555"


def draw(results, seconds, path, title):
    programs = list(dict.fromkeys(r.program for r in results))
    faults = list(dict.fromkeys(r.fault for r in results))
    top = max((rate for r in results for _, *rates in series(r) for rate in rates), default=1) * 1.1 or 1
    width = LEFT + len(faults) * (WIDTH + GAP)
    height = TOP + len(programs) * (HEIGHT + GAP) + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'font-family="sans-serif" font-size="11">',
             f'<rect width="{width}" height="{height}" fill="white"/>',
             text(LEFT, 18, title, 14),
             text(LEFT, 36, "first NIC", fill=FIRST), text(LEFT + 70, 36, "backup", fill=BACKUP),
             text(LEFT + 130, 36, "grey: the fault")]
    for result in results:
        x = LEFT + faults.index(result.fault) * (WIDTH + GAP)
        y = TOP + programs.index(result.program) * (HEIGHT + GAP)
        parts += panel(result, x, y, top, seconds)
    with open(path, "w") as out:
        out.write("\n".join([*parts, "</svg>\n"]))


def series(result):
    """Gbit/s of both NICs between samples."""
    found = []
    for before, after in zip(result.samples, result.samples[1:]):
        span = after[0] - before[0]
        if span > 0:
            found.append((after[0], *(max(0, b - a) * 8e-9 / span for a, b in zip(before[1:], after[1:]))))
    return found


def panel(result, x, y, top, seconds):
    end = max([t for t, *_ in series(result)] + [seconds])
    across = lambda t: x + t / end * WIDTH
    up = lambda rate: y + HEIGHT - min(1, rate / top) * HEIGHT
    start = next((t for t, *rates in series(result) if sum(rates) > 0.01), 0)
    parts = [f'<rect x="{across(start + seconds / 3):.1f}" y="{y}" width="{seconds / 3 / end * WIDTH:.1f}" '
             f'height="{HEIGHT}" fill="#eee"/>',
             f'<path d="M{x} {y}V{y + HEIGHT}H{x + WIDTH}" fill="none" stroke="{AXIS}"/>',
             text(x, y - 4, f"{result.program}: {result.fault}"),
             text(x - 6, y + 8, f"{top:.0f}", anchor="end"), text(x - 6, y + 22, "Gbit/s", anchor="end"),
             text(x - 6, y + HEIGHT, "0", anchor="end"),
             text(x + WIDTH, y + HEIGHT + 13, f"{end:.0f} s", anchor="end")]
    for column, colour in ((1, FIRST), (2, BACKUP)):
        points = " ".join(f"{across(row[0]):.1f},{up(row[column]):.1f}" for row in series(result))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return parts


def text(x, y, words, size=11, fill="#222", anchor="start"):
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{words}</text>'
