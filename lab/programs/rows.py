"""Outcomes, and the table of them."""

from dataclasses import asdict, dataclass


@dataclass
class Row:
    name: str
    outcome: str  # PASS, FAIL or SKIP
    why: str = ""
    seconds: float = 0.0
    bar: str = ""  # which bar the row belongs to

    def as_dict(self):
        return asdict(self)


def print_table(rows):
    width = max((len(r.name) for r in rows), default=0)
    print(f"{'program':{width}}  result  {'time':>6}  what")
    for r in rows:
        print(f"{r.name:{width}}  {r.outcome:6}  {r.seconds:5.1f}s  {r.why}")
