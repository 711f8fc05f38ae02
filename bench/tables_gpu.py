"""The tables of bench/tables.py that come from machines with GPUs."""
import re

from intervals import median_ratio_interval
from tables import (KERNEL_HEAD, RESULTS, TABLES, brief, ceilings, grid, kernel_cells, label, middle, number, origin,
                    ratio, rounds_ratio, spread, table, wrapped)

HEAD = ["", "median (min to max)", "compared with"]


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
    return transfer_rows(result) + ["", *nccl_settings(result)] + origin(result, "transfers_2xh200")


def transfer_rows(result):
    rows = []
    for name, row in result["rows"].items():
        if not name.startswith("nccl "):
            rows.append([f"{short(name)}, {row['path']}", spread(row["gbps"], "GB/s"), beside_transfer(row)])
    return grid(["", "median (min to max)", "floors, GB/s; ours / min(floor, H2D)"], rows)


def short(name):
    name = name.replace("checksums", "CRC32C")
    return re.sub(r"(\d+) KiB$", lambda size: f"{int(size[1]) >> 10} MiB" if int(size[1]) >= 1024 else size[0], name)


def beside_transfer(row):
    """Both floors: memory that no cache holds, and a ring of buffers that is reused."""
    said = ceilings(row)
    if "floor_gbps" not in row or "h2d_gbps" not in row:
        return said
    ours = middle(row, "gbps")
    shares = [ratio(ours, min(middle(row, floor), middle(row, "h2d_gbps")))
              for floor in ("floor_gbps", "ring_floor_gbps") if floor in row]
    return f"{said}; {', '.join(shares)}"


def nccl_settings(result):
    sizes = {}
    for name, row in result["rows"].items():
        if name.startswith("nccl "):
            setting = name[len("nccl "):].split(":")[0]
            sizes.setdefault(row["size"], {})[setting] = row["gbps"]
    rows = []
    for size, by_setting in sizes.items():
        best = max(by_setting, key=lambda setting: by_setting[setting]["median"])
        rows.append([f"{size >> 20} MiB", spread(by_setting.get("default"), "GB/s"),
                     f"{spread(by_setting[best], 'GB/s')} ({best})"])
    return grid(["torch send/recv over NCCL's sockets", "default", "best setting"], rows) if rows else []


@one_gpu
def copies(result):
    rows = []
    for name, row in result["rows"].items():
        if row["bytes"] == 64 << 20 and row.get("executor", "dma") != "dma":
            beside = rounds_ratio(row, "gbps", "ceiling_gbps")
            engine = rounds_ratio(row, "gbps", "dma_gbps") if "dma_gbps" in row else ""
            blocks = f"{row['direction']}, {row['executor']}, {row['host_side']}, {row['block_size'] >> 10} KiB"
            rows.append([blocks, spread(row["gbps"], "GB/s"), beside, engine])
    pipelines = [[name.removeprefix("pipeline: "), spread(row["seconds"], "ms", 1e3), spread(row["speedup"], "×"),
                  spread(row["overlap_percent"], "%")] for name, row in result["rows"].items() if row.get("form")]
    staged = [[name.removeprefix("staged: "), spread(row["gbps"], "GB/s"), spread(row["copy_engine_ratio"], "×"),
               spread(row.get("cp_async_ratio"), "×")] for name, row in result["rows"].items() if "staged_form" in row]
    ladder = [[name.removeprefix("ladder: "), spread(row["ms_per_chunk"], "ms"), row["document"]]
              for name, row in result["rows"].items() if "rung" in row]
    lines = [*grid(["64 MiB", "median (min to max)", "of a plain copy", "of one DMA copy per block"], rows), "",
             *grid(["through a kernel and back", "time", "speedup over blocking", "overlap"], pipelines)]
    if staged:
        lines += ["", *grid(["by way of shared memory", "rate", "of the copy engine", "of cp.async"], staged)]
    if ladder:
        lines += ["", *grid(["unpacking 512 KiB, for each chunk", "ours", "the document's"], ladder)]
    return lines


@one_gpu
def unpack(result):
    return unpack_rows(result)


@table("unpack_2xh200")
def unpack_two(result):
    return unpack_rows(result) + origin(result, "unpack_2xh200")


def unpack_rows(result):
    """Unpacking alone, then transfers through the plugin: their times to launch are of a message and of a chunk."""
    rows = result["rows"]
    alone = [[name, spread(row["gbps"], "GB/s"), spread(row["launch_us_per_message"], "µs")]
             for name, row in rows.items() if "launch_us_per_message" in row]
    by_rows = [[name.removeprefix("rows, "), spread(row["rows_gbps"], "GB/s"), spread(row["ratio"]),
                spread(row["launch_us"], "µs")] for name, row in rows.items() if "rows_gbps" in row]
    latency = [[through_name(name), spread(row["us_p50"], "µs"), spread(row["us_p99"], "µs")]
               for name, row in rows.items() if "us_p50" in row]
    lines = grid(["unpacking alone", "median (min to max)", "launch per message"], alone)
    if by_rows:
        lines += ["", *grid(["rows read by the GPU", "rate", "of a list prepared before", "until launched"], by_rows)]
    lines += ["", *through_rows(rows)]
    if latency:
        lines += ["", *grid(["one write at a time", "median", "99th percentile"], latency)]
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
        depth = ", depth 4" if ", depth 4" in name else ""
        tcp = beside.get(f"plain TCP{depth}:{name.rpartition(':')[2]}") if name not in beside else None
        lines.append([through_name(name), spread(row["gbps"], "GB/s"), spread(row.get("launch_us"), "µs"),
                      *([ratio(middle(row, "gbps"), middle(tcp, "gbps")) if tcp else ""] if beside else [])])
    return grid(["through the plugin", "median (min to max)", "from the plugin's report to the launch",
                 *(["of plain TCP"] if beside else [])], lines)


@one_gpu
def kernels(result):
    """One table per op; parameters that all its rows share stand above it."""
    ops = {}
    for name, row in result["rows"].items():
        op, _, shape = label(name).partition(" ")
        if op == "fused_add_gelu" and not shape.endswith((", exact", ", tanh")):
            shape += ", tanh"  # recorded before there was another form
        ops.setdefault(op, []).append((shape, row))
    lines = []
    for op, rows in ops.items():
        words = [shape.replace(", ", " , ").split(" ") for shape, _ in rows]
        common = [word for word in words[0] if word != "," and all(word in other for other in words)]
        if len(rows) == 1:
            common = []
        cells = [[" ".join(word for word in shape if word not in common).replace(" , ", ", ").strip(" ,"),
                  *kernel_cells(row)] for shape, (_, row) in zip(words, rows)]
        head = f"`{op}`" + (f", {' '.join(common)}" if common else "")
        lines += [*wrapped(f"{head}:"), "", *grid(["case", *KERNEL_HEAD], cells), ""]
    return lines[:-1]


@one_gpu
def python(result):
    rows = []
    for name, row in result["rows"].items():
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
    other starts; then what each costs, and what bounds ours."""
    lines = []
    for place, title in (("lo", "loopback"), ("veth", "veth, MTU 9000")):
        cells = nccl_cells(result, place, nccl_versions(result)[0])
        if cells:
            lines += [*nccl_rates(cells, title), "", *nccl_costs(cells, title), ""]
    return [*lines, *nccl_bounds(result), *nccl_other_version(result), *origin(result, "nccl_2gpu")[1:]]


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


def nccl_rates(cells, title):
    times, ratios = [], []
    for (operation, size), nets in cells.items():
        if "ferry" not in nets or not best_socket(nets):
            continue
        best, ours, name = best_socket(nets), nets["ferry"], f"{operation} {size_of(size)}"
        default = nets.get("default")
        times.append([name, brief(ours["us"]), brief(default["us"]) if default else "", brief(nets[best]["us"])])
        ratios.append([name, best, interval(nets[best], ours), interval(default, ours) if default else ""])
    return [*grid([f"{title}; µs", "ours", "sockets, as installed", "sockets, best setting"], times), "",
            *grid([title, "best setting", "its time / ours (95 %)", "as installed / ours (95 %)"], ratios)]


def nccl_costs(cells, title):
    rows = []
    for (operation, size), nets in cells.items():
        for net in dict.fromkeys(filter(None, ("ferry" if "ferry" in nets else "", best_socket(nets)))):
            row = nets[net]
            if "cpu_seconds_per_gb" in row and size >= 1 << 20:
                facts = [str(row.get(key, "")) for key in ("channels", "peer_channels", "sockets", "pinned_mib")]
                rows.append([f"{operation} {size_of(size)}, {net}", brief(row["cpu_seconds_per_gb"]), *facts])
    return grid([title, "CPU s/GB", "channels", "to a peer", "sockets", "pinned MiB"], rows)


def nccl_bounds(result):
    rows = []
    for (operation, size), nets in nccl_cells(result, "lo", nccl_versions(result)[0]).items():
        if "null" in nets and "ferry" in nets:
            ours, null = nets["ferry"], nets["null"]
            rows.append([f"{operation} {size_of(size)}", brief(ours["us"]), brief(null["us"]),
                         *(brief(ours.get(key)) for key in ("proxy_percent", "copiers_percent"))])
    head = ["what bounds it", "ours, µs", "no bytes moved, µs", "proxy thread, %", "copying threads, %"]
    return [*grid(head, rows), ""] if rows else []


def nccl_other_version(result):
    first, *others = nccl_versions(result)
    lines = []
    for version in others:
        before, rows = nccl_cells(result, "lo", first), []
        for pair, nets in nccl_cells(result, "lo", version).items():
            old = before.get(pair, {})
            rows += [[f"{pair[0]} {size_of(pair[1])}, {net}", brief(old[net]["us"]), brief(row["us"]),
                      interval(old[net], row)] for net, row in nets.items() if net in old]
        lines += [*grid(["µs", f"NCCL {first}", f"NCCL {version}", "rate, to the first's (95 %)"], rows), ""]
    return lines


@table("nccl_five_devices_2xh200")
def nccl_earlier(result):
    """Measured on a commit that is no longer in the history."""
    rows = []
    for name, row in result["rows"].items():
        *words, size, _ = name.split(" ")
        rows.append([" ".join([*words, size_of(int(size))]), brief(row["us"]),
                     f"{brief(row['best_socket_us'])} ({row['best_socket']})",
                     ratio(middle(row, "best_socket_us"), middle(row, "us"))])
    return grid(["five devices; µs", "ours", "sockets, better of two settings", "sockets / ours"], rows) \
        + origin(result, "nccl_five_devices_2xh200")


def size_of(size):
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
