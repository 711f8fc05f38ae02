"""The table of our NIXL back end beside UCX's."""
from tables import grid, number, origin, rounds_ratio, spread, table, wrapped

TITLES = ("UCX at its best",)
GPU_TITLES = ("GPU memory over TCP", "GPU memory within one machine")
# The words and the unit of each measured value.
SHOWN = {"gbps": ("", "GB/s"), "us_p50": ("median, ", "µs"), "us_p99": ("p99, ", "µs"),
         "prepare_ms": ("initialize_xfer, ", "ms"), "first_ms": ("first transfer, ", "ms")}


@table("nixl_2core")
def nixl(result):
    return [*tables_of(result, TITLES), *stopped(result["rows"]), "",
            *versions(result), *origin(result, "nixl_2core")]


@table("nixl_2xh200")
def nixl_gpu(result):
    return [*tables_of(result, GPU_TITLES), *versions(result),
            *origin(result, "nixl_2xh200")]


def versions(result):
    return wrapped(", ".join(f"{name} {version}" for name, version in result["versions"].items()) + ".")


def tables_of(result, titles):
    """A table for each of the titles, and an empty line."""
    lines = []
    for title in titles:
        rows = []
        for name, row in result["rows"].items():
            work, _, rest = name.partition(", FERRY")
            if rest.endswith(f", {title}"):
                rows += compared(result["rows"], work + rest.removesuffix(f", {title}"), row, work, title)
        lines += [*grid([title, "FERRY", "UCX", "ratio"], rows), ""]
    return lines


def compared(rows, shown, ours, work, title):
    """A line for each value. Rates: ours over UCX's; times: ours over UCX's as well, so that less is better."""
    theirs = rows.get(f"{work}, UCX, {title}")
    lines = []
    for key, (what, unit) in SHOWN.items():
        if key not in ours:
            continue
        both = {"ours": ours[key], "theirs": theirs[key]} if theirs else None
        lines.append([f"{shown}, {what}{unit}".replace(", ,", ","), spread(ours[key]),
                      spread(theirs[key]) if theirs else "", rounds_ratio(both, "ours", "theirs") if both else ""])
    return lines


def stopped(rows):
    lines = []
    for name, row in rows.items():
        if "told" in row:
            said = f"an error after {spread(row['seconds_to_error'], 's')}" if row["told"] else "no error within 60 s"
            lines.append(f"- {name}: {said}, {number(row['told'])} of {number(row['of'])}")
    return lines
