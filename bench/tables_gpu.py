"""The tables of bench/tables.py that come from machines with GPUs."""
import re

from intervals import median_ratio_interval
from tables import (RESULTS, TABLES, grid, label, middle, number, origin, ratio, rounds_ratio, spread, table,
                    wrapped)

HEAD = ["", "median (min–max)", "compared with"]


def one_gpu(function):
    """A table "kernels" of an H200, and "kernels_h100" where an H100 has been measured, too."""
    name = function.__name__

    def drawn(file):
        return lambda result: function(result) + origin(result, file)
    TABLES[name] = ((f"{name}_h200",), drawn(f"{name}_h200"))
    if (RESULTS / f"{name}_h100.json").is_file():
        TABLES[f"{name}_h100"] = ((f"{name}_h100",), drawn(f"{name}_h100"))
    return function


@one_gpu
def transfers(result):
    return transfer_rows(result)


@table("transfers_2xh200")
def transfers_two(result):
    return transfer_rows(result) + origin(result, "transfers_2xh200")


def transfer_rows(result):
    """Writes of 64 MiB and 1 GiB, of pages of 256 MiB, and one read."""
    rows = []
    for name, row in result["rows"].items():
        sizes = (256 << 20,) if "pages" in name else (64 << 20, 1 << 30)
        if name == "contiguous: read 1048576 KiB" or "read" not in name and row["size"] in sizes:
            rows.append([short(name), spread(row["gbps"]), beside_transfer(row)])
    return grid(["", "GB/s", "cold, ring, H2D; ours / min(floor, H2D)"], rows)


def short(name):
    name = name.replace("checksums", "CRC32C")
    return re.sub(r"(\d+) KiB$", lambda size: f"{int(size[1]) >> 10} MiB" if int(size[1]) >= 1024 else size[0], name)


def beside_transfer(row):
    """Both floors: memory that no cache holds, and a ring of buffers that is reused."""
    if "floor_gbps" not in row:
        return ""
    cold, ring, engine, ours = (middle(row, key) for key in ("floor_gbps", "ring_floor_gbps", "h2d_gbps", "gbps"))
    return (f"{number(cold)}, {number(ring)}, {number(engine)}; "
            f"{ratio(ours, min(cold, engine))}, {ratio(ours, min(ring, engine))}")


@one_gpu
def copies(result):
    rows = []
    for name, row in result["rows"].items():
        if row["bytes"] == 64 << 20 and row.get("executor") == "kernel":
            beside = rounds_ratio(row, "gbps", "ceiling_gbps")
            engine = rounds_ratio(row, "gbps", "dma_gbps") if "dma_gbps" in row else ""
            blocks = f"{row['direction']}, {row['host_side']}, {row['block_size'] >> 10} KiB"
            rows.append([blocks, spread(row["gbps"]), beside, engine])
    pipelines = [[name.removeprefix("pipeline: "), spread(row["seconds"], "", 1e3), spread(row["speedup"]),
                  spread(row["overlap_percent"])] for name, row in result["rows"].items()
                 if row.get("form") and "pinned" in name and name.endswith(("blocking, 1 streams", "4 streams"))]
    staged = [[name.removeprefix("staged: "), spread(row["gbps"]), spread(row["copy_engine_ratio"])]
              for name, row in result["rows"].items()
              if "staged_form" in row and ("cuda" in name) == name.endswith("3 stages")]
    ladder = [[name.removeprefix("ladder: "), spread(row["ms_per_chunk"]), row["document"].removesuffix(" ms")]
              for name, row in result["rows"].items() if "rung" in row]
    lines = [*grid(["64 MiB", "GB/s", "of a plain copy", "of one DMA copy per block"], rows), "",
             *grid(["through a kernel and back", "ms", "speedup over blocking", "overlap, %"], pipelines)]
    if staged:
        lines += ["", *grid(["by way of shared memory", "GB/s", "of the copy engine"], staged)]
    if ladder:
        lines += ["", *grid(["unpacking 512 KiB, ms for each chunk", "ours", "the document's"], ladder)]
    return lines


@one_gpu
def unpack(result):
    return unpack_rows(result)


@table("unpack_2xh200")
def unpack_two(result):
    return unpack_rows(result) + origin(result, "unpack_2xh200")


def unpack_rows(result):
    """Unpacking alone, of fragments as TCPX has them, then transfers through the plugin."""
    rows = {name: row for name, row in result["rows"].items()
            if not re.search("(of 1024 bytes|of 16384 bytes|latency.* 4 KiB)$", name)}
    alone = [[name, spread(row["gbps"]), spread(row["launch_us_per_message"])]
             for name, row in rows.items() if "launch_us_per_message" in row]
    by_rows = [[name.removeprefix("rows, "), spread(row["rows_gbps"]), spread(row["ratio"])]
               for name, row in rows.items() if "rows_gbps" in row]
    latency = [[through_name(name), spread(row["us_p50"])]
               for name, row in rows.items() if "us_p50" in row]
    lines = grid(["unpacking alone", "GB/s", "launch per message, µs"], alone)
    if by_rows:
        lines += ["", *grid(["rows read by the GPU", "GB/s", "of a list prepared before"], by_rows)]
    lines += ["", *through_rows(rows)]
    if latency:
        lines += ["", *grid(["one write at a time", "median, µs"], latency)]
    return lines


def through_name(name):
    return short(name.removeprefix("through the plugin, "))


def through_rows(rows):
    """Rates through the plugin, and beside them those of TCP where the same run has them."""
    found = {name: row for name, row in rows.items()
             if "gbps" in row and not {"launch_us_per_message", "us_p50"} & set(row)}
    beside = {name: row for name, row in found.items() if name.startswith("plain TCP")}
    lines = []
    for name, row in found.items():
        group, _, moved = through_name(name).partition(": ")
        shown = moved == "read 64 MiB" or moved == "write 64 MiB" and group in ("kernel", "dma")
        if not shown or name in beside or "16 channels" in name:
            continue
        depth = ", depth 4" if ", depth 4" in name else ""
        tcp = beside.get(f"plain TCP{depth}:{name.rpartition(':')[2]}") if name not in beside else None
        lines.append([through_name(name), spread(row["gbps"]),
                      *([ratio(middle(row, "gbps"), middle(tcp, "gbps")) if tcp else ""] if beside else [])])
    return grid(["through the plugin", "GB/s", *(["of plain TCP"] if beside else [])], lines)


# For each op: a small case, the largest, and the cases that documents name.
CASES = re.compile(r"gelu fp32|mul_add bf16 rows=2048|rows=(8|10922|65536) |silu.* rows=1 |"
                   r"rows=(1|256) .*(greedy|top-p)|"
                   r"(rope|kvcache) bf16 tokens=(1|16384) .*kv_heads=8$|qk_.* tokens=(256|4096|16384) heads=32|"
                   r"attention_decode .*batch=(1 tokens=1024|64|32) .*page=256|"
                   r"attention_prefill .*batch=16? .*(2 stages|wgmma)")


@one_gpu
def kernels(result):
    """Parameters that all rows of an op share stand below the table."""
    ops = {}
    for name, row in result["rows"].items():
        name = label(name)
        if CASES.search(name):
            op, _, shape = name.partition(" ")
            if op == "fused_add_gelu" and not shape.endswith((", exact", ", tanh")):
                shape += ", tanh"  # recorded before there was another form
            ops.setdefault(op, []).append((shape.removeprefix("bf16 ").replace(", ", " , ").split(" "), row))
    cells, shared = [], []
    for op, rows in ops.items():
        common = [word for word in rows[0][0] if word != "," and all(word in other for other, _ in rows)]
        cells += [[f"`{op}` {' '.join(word for word in shape if word not in common)}".replace(" , ", ", ").strip(" ,"),
                   *kernel_cells(row)] for shape, row in rows]
        shared.append(f"{op} {' '.join(common)}")
    return [*grid(["", "µs", "GB/s", "of a copy", "torch at its best, µs"], cells), "",
            *wrapped(f"In all rows: {'; '.join(shared)}.")]


def kernel_cells(row):
    """Time, rate, the share of a copy's rate, and the shortest of the times of torch."""
    rate = f"{number(middle(row, 'rate'))} {row['rate']['unit']}".removesuffix(" GB/s") if "rate" in row else ""
    share = ratio(middle(row, "rate"), middle(row, "ceiling_gbps")) if "ceiling_gbps" in row else ""
    torch = min((key for key in row if key.startswith("torch ")), key=lambda key: middle(row, key), default="")
    return [spread(row["us"]), rate, share, f"{torch[6:]} {number(middle(row, torch))}" if torch else ""]


@one_gpu
def python(result):
    """Rows: the largest error of each type, 32 sequences, 8 GiB of weights. A type has one tolerance."""
    worst = {}
    for name, row in result["rows"].items():
        if "error" in row:
            worst.setdefault(row["tolerance"], []).append((row["error"]["median"], name))
    hidden = {name for found in worst.values() for _, name in found if name != max(found)[1]}
    rows = []
    for name, row in result["rows"].items():
        if name in hidden or re.search("of [1-9]6? seq|push_weights 1024|speed: .*tanh|memory: [^C]", name):
            continue
        if "tokens_per_s" in row:
            rows.append([name, spread(row["tokens_per_s"], "tokens/s"), spread(row["step_ms"], "ms") + " per step"])
        elif "own_us" in row:
            rows.append([name, spread(row["us"], "µs"), spread(row["own_us"], "µs") + " by nano-vllm itself"])
        elif "separately_us" in row:
            rows.append([name, spread(row["us"], "µs"), spread(row["separately_us"], "µs") + " tensor and copy each"])
        elif "torch_us" in row:
            rows.append([name, spread(row["us"], "µs"), spread(row["torch_us"], "µs") + " by torch"])
        elif "peak_bytes" in row:
            rows.append([name, spread(row["peak_bytes"], "MiB", 2**-20),
                         spread(row["torch_peak_bytes"], "MiB", 2**-20) + " by torch"])
        elif "error" in row:
            rows.append([name, f"{row['error']['median']:.1e}", f"at most {row['tolerance']}"])
        else:
            rows.append([name, spread(row["gbps"], "GB/s"), ""])
    return grid(HEAD, rows)


@table("nccl_2gpu")
def nccl(result):
    """Ours as it is by default, the sockets as installed, and the better of the settings that were the fastest in
    other starts; then what each costs and what bounds ours."""
    cells = nccl_cells(result, "lo", nccl_versions(result)[0])
    return [*nccl_rates(cells), "", *nccl_costs(cells), *origin(result, "nccl_2gpu")]


@table("nccl_2gpu")
def nccl_brief(result):
    """From 1 MiB on, of two operations, for README.md."""
    rows = []
    for (operation, size), nets in nccl_cells(result, "lo", nccl_versions(result)[0]).items():
        if operation in ("send_recv", "all_reduce") and size >= 1 << 20 and "ferry" in nets and best_socket(nets):
            shown = [nets["ferry"], nets.get("default"), nets[best_socket(nets)]]
            rates = [number(size / middle(row, "us") / 1e3) if row else "" for row in shown]
            rows.append([f"{operation} {size_of(size)}", *rates, interval(shown[2], shown[0])])
    return grid(["NCCL, GB/s", "plug-in", "sockets, as installed", "sockets, best setting", "plug-in / best (95 %)"],
                rows)


def nccl_versions(result):
    """The version that was compared with the sockets, and the others."""
    rows = [row for row in result["rows"].values() if row["stage"] == "measure"]
    sockets = [row["nccl"] for row in rows if row["net"] == "default"]
    first = sockets[0] if sockets else rows[0]["nccl"]
    return [first, *dict.fromkeys(row["nccl"] for row in rows if row["nccl"] != first)]


def nccl_cells(result, place, version):
    """{(operation, size): {net: row}}, of the settings of the sockets only those that were chosen."""
    cells = {}
    for row in result["rows"].values():
        if (row["stage"], row["place"], row["nccl"]) == ("measure", place, version):
            cells.setdefault((row["operation"], row["size"]), {})[row["net"]] = row
    return cells


def best_socket(nets):
    """The chosen setting with the lower median; "" without one."""
    chosen = [net for net in nets if net.split(";")[0] not in ("ferry", "env", "null")]
    return min(chosen, key=lambda net: middle(nets[net], "us"), default="")


def interval(theirs, ours):
    middle_value, low, high = median_ratio_interval(theirs["us"]["samples"], ours["us"]["samples"])
    return f"{middle_value:.2f} ({low:.2f}–{high:.2f})" if theirs["us"]["n"] > 1 else f"{middle_value:.2f}"


def nccl_rates(cells):
    """What README.md and docs/ speak of."""
    rows = []
    for (operation, size), nets in cells.items():
        best = best_socket(nets)
        sizes = (8, 4 << 10, 32 << 10, 1 << 20, 4 << 20, 64 << 20, 256 << 20)
        if operation not in ("send_recv", "all_reduce"):
            sizes = (1 << 20,)
        if "ferry" in nets and best and size in sizes:
            rows.append([f"{operation} {size_of(size)}", spread(nets["ferry"]["us"]),
                         spread(nets["default"]["us"]) if "default" in nets else "",
                         spread(nets[best]["us"]), interval(nets[best], nets["ferry"])])
    return grid(["µs", "ours", "sockets, as installed", "sockets, best setting", "best's time / ours (95 %)"], rows)


def nccl_costs(cells):
    rows = []
    for (operation, size), nets in cells.items():
        both = [nets[net] for net in ("ferry", best_socket(nets)) if net in nets]
        shown = operation in ("send_recv", "all_reduce") and size in (1 << 20, 4 << 20, 64 << 20)
        if shown and len(both) == 2:
            null = ratio(middle(nets["null"], "us"), middle(both[0], "us")) if "null" in nets else ""
            costs = [spread(row.get("cpu_seconds_per_gb")) for row in both]
            rows.append([f"{operation} {size_of(size)}", *costs, null])
    return grid(["CPU s/GB", "ours", "best setting", "time without moving bytes / ours"], rows)


def size_of(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
