"""The table of the scoreboard, from the records that `--json` writes."""

import math
import statistics

MIB = 1 << 20


def percent_of(column):
    """Returns the percentage that the title of a column begins with."""
    return int(column.split()[0])


def ratio(cell):
    """Returns how many times the plain time a cell took; infinity if the kernel killed it; None if it was not run."""
    if cell is None or cell["outcome"] in ("wrong", "failed", "not run"):
        return None
    if cell["outcome"] == "killed":
        return math.inf
    if cell["outcome"] == "over":
        return float(cell["over"])
    return cell["seconds_median"] / cell["plain_seconds_median"]


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
    return "| " + " | ".join([*head, *(shown(ratio(cell), cell) for cell in cells)]) + " |"


def summary(rows, columns):
    """Returns a record for each column: the median and the worst, of programs and of rows with a fixed local memory."""
    records = []
    for fixed in (False, True):
        for column in columns:
            found = [(ratio(cell_of(row, column)), row) for row in rows if row["fixed_local"] == fixed]
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


def comparisons(rows):
    """Returns lines that compare the first setting of Hanare with each peer, and with the best of the other settings."""
    found = {}  # of what it is compared with and the percentage: (quotient, name of the program)
    for row in rows:
        for percent in dict.fromkeys(cell["percent"] for cell in row["cells"]):
            at = [cell for cell in row["cells"] if cell["percent"] == percent]
            ours = ratio(at[0])
            others = {cell["kind"]: [cell] for cell in at if cell["kind"] != "hanare"}
            others["the best other setting"] = [cell for cell in at[1:] if cell["kind"] == "hanare"]
            for what, cells in others.items():
                values = [value for value in (ratio(cell) for cell in cells) if value is not None]
                if ours is not None and values:
                    found.setdefault(what, {}).setdefault(percent, []).append((ours / min(values), row["name"]))
            if "floor_seconds" in at[0] and "seconds_median" in at[0]:
                quotient = at[0]["seconds_median"] / at[0]["floor_seconds"]
                found.setdefault("the floor", {}).setdefault(percent, []).append((quotient, row["name"]))
    lines = []
    for what, percents in found.items():
        parts = []
        for percent, values in percents.items():
            worst, name = max(values)
            parts.append(f"{percent} %: {statistics.median(value for value, _ in values):.2f}, {worst:.2f} {name}")
        lines.append(f"time against {what}, median and worst: " + "; ".join(parts))
    return lines


def details(row):
    """Returns a line for each cell with its figures."""
    lines = [f"  plain: {row['plain']['seconds_median']:.2f} s, peak of {row['plain']['anon_bytes_peak'] / MIB:.0f} MiB"]
    for cell in row["cells"]:
        parts = [f"{seconds:.2f} s" for seconds in cell["seconds"]] or [cell["outcome"]]
        for name, label in (
            ("local_bytes_budget", "local"), ("near_bytes_peak", "near"), ("limit_bytes", "limit"),
            ("bytes_out", "out"), ("bytes_in", "in"),
        ):
            parts += [f"{label} {cell[name] / MIB:.0f} MiB"] if name in cell else []
        parts += [f"{cell['faults']} faults, {cell['mode']} mode"] if "faults" in cell else []
        parts += [f"{cell['floor_seconds']:.2f} s at the floor"] if "floor_seconds" in cell else []
        lines.append(f"  {cell['column']}: " + ", ".join(parts))
    return "\n".join(lines)


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
