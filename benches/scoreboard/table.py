"""The table of the scoreboard, from the records that `--json` writes."""

import math
import statistics

MIB = 1 << 20


def ratio(cell, row):
    """Returns how many times the plain time a cell took; infinity if the kernel killed it; None if it was not run."""
    if cell is None or cell["outcome"] in ("wrong", "failed", "not run"):
        return None
    if cell["outcome"] == "killed":
        return math.inf
    if cell["outcome"] == "over":
        return float(cell["over"])
    return cell["seconds_median"] / row["plain"]["seconds_median"]


def shown(value, cell):
    """Returns the text of a cell."""
    outcome = cell["outcome"] if cell else "not run"
    if outcome == "over":
        return f"over {cell['over']:g}"
    if outcome == "not run":
        return "-"
    return f"{value:.2f}" if outcome == "right" else outcome


def cell_of(row, column):
    return next((cell for cell in row["cells"] if cell["column"] == column), None)


def header(columns):
    heads = ["program", "what is run", "far MiB", "near MiB", "plain s", *columns]
    return "\n".join(["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"])


def line(row, columns):
    """Returns the line of one program."""
    cells = [cell_of(row, column) for column in columns]
    head = [row["name"], row["what"]]
    if row.get("skipped"):
        return "| " + " | ".join([*head, f"skipped: {row['skipped']}"]) + " |" + " |" * (len(columns) + 2)
    head += [f"{row['far_bytes_peak'] / MIB:.0f}", f"{row['near_bytes_peak'] / MIB:.0f}"]
    head += [f"{row['plain']['seconds_median']:.2f}"]
    return "| " + " | ".join([*head, *(shown(ratio(cell, row), cell) for cell in cells)]) + " |"


def summary(rows, columns):
    """Returns a record for each column: the median and the worst, of programs and of rows with a fixed local memory."""
    records = []
    for fixed in (False, True):
        for column in columns:
            found = [(ratio(cell_of(row, column), row), row) for row in rows if row["fixed_local"] == fixed]
            found = [(value, row) for value, row in found if value is not None]
            if not found:
                continue
            worst, row = max(found, key=lambda pair: pair[0])
            records.append({
                "column": column, "fixed_local": fixed, "programs": len(found),
                "median": finite(statistics.median_high([value for value, _ in found])),
                "worst": finite(worst), "worst_program": row["name"], "worst_cell": shown(worst, cell_of(row, column)),
            })
    return records


def finite(value):
    """Returns a ratio as JSON can have it: a killed program's is None."""
    return None if math.isinf(value) else value


def last_line(records):
    """Returns the line of medians and worst values."""
    parts = []
    for record in records:
        median = "killed" if record["median"] is None else f"{record['median']:.2f}"
        where = "blocks that come and go, " if record["fixed_local"] else ""
        parts.append(f"{where}{record['column']}: {median}, {record['worst_cell']} {record['worst_program']}")
    return "median, worst: " + "; ".join(parts or ["nothing was run"])
