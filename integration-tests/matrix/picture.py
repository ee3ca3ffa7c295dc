#!/usr/bin/env python3
"""docs/matrix.svg: what held of what was asked, for each dialect on each wire. It has counts and no times, so a run of the same
scenarios makes the same picture.

picture.py REPORT.json          writes it from the output of `rescind matrix --json`
picture.py --check REPORT.json  fails if it differs from that run
picture.py --pages              fails if a page has another number of cells than the picture"""

import json
import pathlib
import re
import subprocess
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PICTURE = ROOT / "docs" / "matrix.svg"
STYLE = (
    "text{font:12px sans-serif;fill:#222}.total{font-weight:bold;font-size:15px}.wire,.dialect{font-weight:bold}.wire{font-size:11px}"
    ".held{fill:#dff1e1}.broke{fill:#f6c6c6}.none{fill:#ececee}.of{fill:#14532d}.nothing{fill:#888}"
)
LEFT, TOP, WIDTH, HEIGHT, LINE = 80, 96, 80, 26, 14


def counts(report):
    """For each dialect and wire, in the order of the report: how many cells held, and how many were asked."""
    held_and_asked = {}
    for cell in report["cells"]:
        held, asked = held_and_asked.setdefault(cell["dialect"], {}).get(cell["wire"], (0, 0))
        outcome = cell["outcome"]
        held_and_asked[cell["dialect"]][cell["wire"]] = (held + (outcome == "held"), asked + (outcome != "not-asked"))
    return held_and_asked


def heading(wire):
    """The name of a wire in short lines: `bridge:websocket>stdio` is `bridge:`, `websocket`, `>stdio`."""
    return re.sub(r"(bridge:)", r"\1\n", re.sub(r"(-|(?=[>@]))", r"\1\n", wire)).split("\n")


def picture(report):
    fields = counts(report)
    wires = list(next(iter(fields.values())))
    summary = report["summary"]
    total = f"{len(report['cells']):,} cells: {summary['held']:,} held, {summary['broke']:,} broke, {summary['not_asked']:,} not asked"
    right, bottom = LEFT + WIDTH * len(wires) + 8, TOP + HEIGHT * len(fields) + 8
    shapes = []
    for column, wire in enumerate(wires):
        lines = heading(wire)
        for number, text in enumerate(lines):
            y = TOP - 8 - LINE * (len(lines) - 1 - number)
            shapes.append(f'<text class="wire" x="{LEFT + WIDTH * column + WIDTH // 2}" y="{y}" text-anchor="middle">{escape(text)}</text>')
    for row, (dialect, by_wire) in enumerate(fields.items()):
        y = TOP + HEIGHT * row
        shapes.append(f'<text class="dialect" x="8" y="{y + 17}">{dialect}</text>')
        for column, wire in enumerate(wires):
            held, asked = by_wire[wire]
            kind = "none" if not asked else "held" if held == asked else "broke"
            shown, of = (f"{held}/{asked}", "of") if asked else ("-", "nothing")
            x = LEFT + WIDTH * column
            shapes.append(f'<rect class="{kind}" x="{x + 1}" y="{y + 1}" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="3"/>')
            shapes.append(f'<text class="{of}" x="{x + WIDTH // 2}" y="{y + 17}" text-anchor="middle">{shown}</text>')
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right} {bottom}" role="img">',
        f"<title>{total}</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{right}" height="{bottom}" fill="#fff"/>',
        f'<text class="total" x="8" y="22">{total}</text>',
        *shapes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def shown():
    """The number of cells on the picture."""
    return re.search(r"<title>([\d,]+) cells: ", PICTURE.read_text()).group(1)


def check(report):
    if (made := picture(report)) != PICTURE.read_text():
        here = set(PICTURE.read_text().splitlines())
        lines = [line for line in made.splitlines() if line not in here]
        sys.exit("docs/matrix.svg shows other counts than this run. `.ci/matrix --write` draws it again. New:\n" + "\n".join(lines[:20]))
    print(f"docs/matrix.svg shows this run: {shown()} cells")


def check_pages():
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    stated = [(name, number) for name in names for number in re.findall(r"\b(\d[\d,]*) cells\b", (ROOT / name).read_text())]
    wrong = [f"{name}: {number} cells, and docs/matrix.svg shows {shown()}" for name, number in stated if number.replace(",", "") != shown().replace(",", "")]
    if wrong or not stated:
        sys.exit("\n".join(wrong) or "no page says how many cells the matrix has, so none was compared")
    print(f"docs/matrix.svg and the pages say the same: {shown()} cells")


match sys.argv[1:]:
    case ["--check", file]:
        check(json.loads(pathlib.Path(file).read_text()))
    case ["--pages"]:
        check_pages()
    case [file]:
        PICTURE.write_text(picture(json.loads(pathlib.Path(file).read_text())))
    case _:
        sys.exit(__doc__)
