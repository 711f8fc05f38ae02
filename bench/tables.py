"""The tables of README.md and docs/ that are made from bench/results/*.json; scripts/make_results puts them there.

A table is a function of the results that its decorator names, in their order; a result that does not exist is
None. Where bench/results/earlier has one instead, that one is shown and marked as older. The function returns lines
of Markdown. Every figure in them is computed here from a file; none is written by hand.
"""
import json
import pathlib
import re
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
TABLES = {}
WIDTH = 100

# The command that makes each file; scripts/make_results and the tables of missing results print it.
COMMANDS = {
    "loopback_2core": "bench/loopback",
    "link_2core": "bench/link",
    "latency_2core": "bench/latency --python build/python/venv/bin/python",
    "small_messages_2core": "bench/small_messages",
    "strangers_2core": "bench/strangers --only writes",
    "admission_2core": "bench/strangers --only admission --rounds 1",
    "peer_memory_2core": "bench/peer_memory",
    "operations_2core": "bench/operations --rounds 3",
    "reliability_2core": "bench/reliability",
    "peers_2core": "bench/peers",
    "nixl_2core": "bench/nixl",
    "nixl_2xh200": "bench/nixl --memory cuda",
    "soak_2core": "bench/soak",
    "ray_2core": "build/python/venv/bin/python bench/ray_objects",
    "call_costs_2core": "build/python/venv/bin/python bench/call_costs",
    "call_costs_h100": "python3 bench/call_costs --device cuda --calls 4000",
    "broadcast_2core": "build/python/venv/bin/python bench/broadcast --rounds 3",
    "nccl_net_h200": "bench/nccl_net",
    "copies_h200": "bench/gpu --parts copies",
    "transfers_h200": "bench/gpu --parts transfers",
    "unpack_h200": "bench/gpu --parts unpack",
    "kernels_h200": "bench/gpu --parts kernels",
    "python_h200": "bench/gpu --parts python",
    "link_2xh200": "bench/link --memory cuda:0 --peer-memory cuda:1",
    "nccl_2gpu": "bench/nccl_collectives --summarize --rows ROWS",
}


def table(*files):
    def keep(function):
        TABLES[function.__name__] = (files, function)
        return function
    return keep


def is_earlier(name):
    """Whether there is only an earlier result, of an older form."""
    return not (RESULTS / f"{name}.json").is_file() and (RESULTS / "earlier" / f"{name}.json").is_file()


def path_of(name):
    """From bench/results."""
    return f"earlier/{name}.json" if is_earlier(name) else f"{name}.json"


def load(name):
    path = RESULTS / path_of(name)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def all_results():
    """Those that a command makes, in the commands' order, and all others that there are."""
    found = sorted({path.stem for folder in (RESULTS, RESULTS / "earlier") for path in folder.glob("*.json")})
    return list(dict.fromkeys([*COMMANDS, *found]))


def render(name):
    """The text between the marks of this table."""
    function = TABLES[name][1]
    files = files_of(name)
    results = [load(file) for file in files]
    if all(result is None for result in results):
        return "\n".join(missing(files))
    return "\n".join(function(*results)).strip("\n")


def files_of(name):
    return TABLES[name][0] or all_results()


def sources(name):
    return [f"bench/results/{path_of(file)}" for file in files_of(name)]


def missing(files):
    return ["Not measured on this code yet:", "", *[f"- `{command_for(file)}`" for file in files]]


def command_for(file):
    """The command that makes this file."""
    command = COMMANDS.get(file, COMMANDS.get(file.replace("_h100", "_h200"), f"nothing makes {file} any more"))
    return f"{command} --out bench/results" if command.startswith("bench/gpu") else \
        f"{command} --json bench/results/{file}.json"


# ---- cells --------------------------------------------------------------------------------------


def number(value):
    """Three digits that count, without an exponent."""
    if value == int(value) and abs(value) < 1e9:
        return f"{value:,.0f}"
    digits = 0
    while digits < 6 and abs(value) * 10**digits < 99.95:
        digits += 1
    return f"{value:,.{digits if abs(value) < 99.95 else 0}f}"


def spread(value, unit="", scale=1.0):
    """"13.1 GB/s (12.8 to 13.6)"."""
    if value is None:
        return ""
    middle, least, most = (number(value[key] * scale) for key in ("median", "min", "max"))
    shown = f"{middle} {unit}".strip()
    return shown if value["n"] == 1 or least == most else f"{shown} ({least} to {most})"


def brief(value, scale=1.0):
    """"13.1 (12.8–13.6)", where the head of the table has the unit."""
    if value is None:
        return ""
    middle_value, least, most = (number(value[key] * scale) for key in ("median", "min", "max"))
    return middle_value if value["n"] == 1 or least == most else f"{middle_value} ({least}–{most})"


def middle(row, key):
    return row[key]["median"]


def ratio(ours, theirs):
    return f"{ours / theirs:.2f}"


def rounds_ratio(row, ours, theirs):
    """The median of the ratios of each round, with their range."""
    pairs = sorted(a / b for a, b in zip(row[ours]["samples"], row[theirs]["samples"]))
    half = len(pairs) // 2
    centre = pairs[half] if len(pairs) % 2 else (pairs[half - 1] + pairs[half]) / 2
    return f"{centre:.2f} ({pairs[0]:.2f} to {pairs[-1]:.2f})"


def grid(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


# Options whose values are paths of the machine that measured; others change what is measured.
PATH_OPTIONS = re.compile(r" --(?:build|json|nccl|null|out|plugin|programs|python|rows)[ =]\S+")


def machine_of(result):
    """The machine without the suffix by which a distribution or provider names its build of the kernel."""
    return re.sub(r"(Linux \d+(?:\.\d+)+)-[^\s,]+", r"\1", result["machine"])


def command_of(result):
    return PATH_OPTIONS.sub("", result["command"])


def origin(result, file):
    """What was measured, where and when."""
    count, note = f"n = {result['n']}; ", ""
    if is_earlier(file):
        count, note = "", f" An earlier result, {result['note']}."
    said = (f"`{result['commit'][:12]}`, {result['date']}, {machine_of(result)}; {count}"
            f"`{command_of(result)}` → `bench/results/{path_of(file)}`.{note}")
    return ["", *wrapped(said)]


def wrapped(text):
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def named(result, *names):
    """Those rows that there are."""
    return [(name, result["rows"][name]) for name in names if name in result["rows"]]


# ---- the front page -----------------------------------------------------------------------------


@table()
def overview(*results):
    """Each benchmark with its commit and machine. Machines have letters, which a list below the table explains."""
    rows, machines = [], {}
    for file, result in zip(all_results(), results):
        if result is None:
            rows.append([file, "not measured on this code", "", "", "", ""])
            continue
        letter = machines.setdefault(machine_of(result), chr(ord("A") + len(machines)))
        older = is_earlier(file)
        rows.append([file, f"`{result['commit'][:8]}`{' (older format)' if older else ''}", result["date"], letter,
                     "" if older else result["n"], typical_spread(result)])
    return [*grid(["benchmark", "commit", "date", "machine", "n", "spread"], rows), "",
            *[f"- {letter}: {machine}" for machine, letter in machines.items()]]


def typical_spread(result):
    """Half of the range of a row's samples over its median; the median of that over the rows."""
    shares = sorted((value["max"] - value["min"]) / 2 / value["median"] for row in result["rows"].values()
                    for value in row.values() if isinstance(value, dict) and value["n"] > 1 and value["median"])
    return f"± {100 * shares[len(shares) // 2]:.0f} %" if shares else "one sample"


@table("loopback_2core", "peers_2core")
def summary_host(loopback, peers):
    rows = []
    labels = {"write 64 MiB": "write 64 MiB", "read 64 MiB": "read 64 MiB",
              "write 64 MiB in 16 KiB blocks": "write, 4096 shuffled blocks of 16 KiB"}
    for name, row in named(loopback, *labels) if loopback else []:
        rows.append([labels[name], spread(row["gbps"], "GB/s"),
                     f"{rounds_ratio(row, 'gbps', 'floor_gbps')} × a plain-socket copy"])
    for name, row in named(loopback, "send 8 B, spin") if loopback else []:
        rows.append(["8-byte message, half a round trip, spinning", spread(row["half_rtt_us_p50"], "µs"),
                     f"{rounds_ratio(row, 'half_rtt_us_p50', 'floor_half_rtt_us_p50')} × a plain socket's time"])
    defaults = {(operation, who): best for operation, who, best in rivals(peers, "defaults")}
    others = [[operation, who, f"{best} ×", f"{defaults[operation, who]} ×"]
              for operation, who, best in rivals(peers, "reno") if (operation, who) in defaults]
    lines = [*grid(["operation", "median (min to max)", "compared with plain sockets"], rows), "",
             "Our median rate over that of other libraries, on 64 MiB:", "",
             *grid(["operation", "compared with", "all under reno", "each with its defaults"], others)]
    for result, file in ((loopback, "loopback_2core"), (peers, "peers_2core")):
        lines += origin(result, file) if result else []
    return lines


def rivals(peers, title):
    """(operation, whom, ours over the best of theirs)."""
    found = []
    if not peers:
        return found
    sides = {"write": {"UCX's best of put, tag and active messages": ["ucx put", "ucx tag", "ucx am"],
                       "NIXL": ["nixl write"], "Mooncake's transfer engine": ["mooncake write"]},
             "read": {"UCX's get, tuned": ["ucx get", "ucx get tuned"], "NIXL": ["nixl read"],
                      "Mooncake's transfer engine": ["mooncake read"]},
             "write, blocks": {"NIXL": ["nixl write, blocks"]}, "read, blocks": {"NIXL": ["nixl read, blocks"]}}
    for operation, whom in sides.items():
        ours = peers["rows"].get(f"ferry {operation}, {title}")
        for who, names in whom.items():
            theirs = [middle(row, "gbps") for prefix in ("", "Debian's ") for _, row in
                      named(peers, *[f"{prefix}{name}, {title}" for name in names]) if "gbps" in row]
            if ours and "gbps" in ours and theirs:
                found.append((operation, who, ratio(middle(ours, "gbps"), max(theirs))))
    return found


@table("transfers_h200", "kernels_h200")
def summary_gpu(transfers, kernels):
    rows = []
    for name, row in named(transfers, "contiguous: write 1048576 KiB", "16 KiB pages: write 262144 KiB",
                           "contiguous: write 65536 KiB", "one machine: write 1048576 KiB") if transfers else []:
        rows.append([name.replace("1048576 KiB", "1 GiB").replace("262144 KiB", "256 MiB")
                     .replace("65536 KiB", "64 MiB"), spread(row["gbps"], "GB/s"), ceilings(row)])
    lines = grid(["", "median (min to max)", "ceilings, GB/s"], rows)
    if kernels:
        shown = [(name.partition(" ")[::2], row) for name, row in kernels["rows"].items() if row.get("headline")]
        lines += ["", *grid(["kernel", *KERNEL_HEAD], [[op, *kernel_cells(row)] for (op, _), row in shown]), "",
                  *wrapped("Shapes: " + "; ".join(f"{op} {shape}" for (op, shape), _ in shown) + ".")]
    for result, file in ((transfers, "transfers_h200"), (kernels, "kernels_h200")):
        lines += origin(result, file) if result else []
    return lines


@table("nixl_2core")
def readme_stopped(result):
    """README's first reason: what happens when a peer stops."""
    rows = result["rows"]
    ours = rows["target stopped in a write, FERRY"]
    said = (f"- **Why:** transfers end within a set time and do not hang. When a peer was stopped (SIGSTOP), NIXL over "
            f"Tensorferry reported an error after {number(middle(ours, 'seconds_to_error'))} s, as its setting says.")
    if not rows["target stopped in a write, UCX"]["told"]:
        said += " NIXL over UCX reported none within a minute (tried once)."
    return textwrap.wrap(said, 116, subsequent_indent="  ")


@table("nixl_2xh200", "peers_2core")
def readme_why(nixl, peers):
    """README's comparison with what else there is."""
    nixl, peers = (result or {"rows": {}} for result in (nixl, peers))
    rows = []
    for case, shown in (("write 64 MiB", "write, between two GPUs"),
                        ("write 4096 blocks of 16 KiB", "the same in 4096 blocks of 16 KiB")):
        pair = [row["gbps"] for _, row in
                named(nixl, *(f"{case}, {who}, GPU memory over TCP" for who in ("UCX", "FERRY")))]
        if len(pair) == 2:
            rows.append([shown, "NIXL over UCX, default settings", *map(brief, pair)])
    for case, who, names in (("write", "UCX, its fastest way", ("ucx put", "ucx tag", "ucx am")),
                             ("read", "UCX, tuned", ("ucx get", "ucx get tuned")),
                             ("read", "Mooncake", ("mooncake read",))):
        theirs = max((row["gbps"] for _, row in named(peers, *(f"{name}, reno" for name in names))),
                     key=lambda value: value["median"], default=None)
        for _, row in named(peers, f"ferry {case}, reno") if theirs else []:
            rows.append([f"{case}, host memory, two cores", who, brief(theirs), brief(row["gbps"])])
    return grid(["64 MiB over loopback", "compared with", "GB/s of that", "GB/s of Tensorferry"], rows)


def ceilings(row):
    """Rates of plain sockets on memory that no cache holds and on a ring of buffers, and of the copy engine."""
    if "floor_gbps" not in row:
        return ""
    said = [f"cold {number(middle(row, 'floor_gbps'))}"]
    if "ring_floor_gbps" in row:
        said.append(f"ring {number(middle(row, 'ring_floor_gbps'))}")
    if "h2d_gbps" in row:
        said.append(f"H2D {number(middle(row, 'h2d_gbps'))}")
    return ", ".join(said)


# ---- host memory --------------------------------------------------------------------------------


@table("loopback_2core")
def loopback(result):
    rows = []
    for name, row in result["rows"].items():
        if "half_rtt_us_p50" in row or "crc_gbps" in row or "TLS" in name:
            continue
        rate = spread(row["gbps"], "GB/s")
        if row["size"] < 1 << 20:
            rate = spread(row["ops_per_second"], "operations/s")
        rows.append([name, rate, rounds_ratio(row, "gbps", "floor_gbps"),
                     rounds_ratio(row, "cpu_seconds_per_gb", "floor_cpu_seconds_per_gb")])
    return grid(["operation", "median (min to max)", "rate / floor", "CPU time / floor's"], rows) \
        + origin(result, "loopback_2core")


def link_rows(result):
    rows = []
    for name, row in result["rows"].items():
        floor = rounds_ratio(row, "gbps", "floor_gbps") if "floor_gbps" in row else "not measured"
        rows.append([name, spread(row["gbps"], "GB/s"), floor])
    return grid(["operation", "median (min to max)", "rate / floor"], rows)


@table("link_2core")
def link(result):
    return link_rows(result) + origin(result, "link_2core")


@table("link_2xh200")
def link_gpu(result):
    return link_rows(result) + origin(result, "link_2xh200")


@table("loopback_2core")
def latency_of_sends(result):
    rows = []
    for name, row in result["rows"].items():
        if "half_rtt_us_p50" in row:
            rows.append([name, spread(row["half_rtt_us_p50"], "µs"), spread(row["floor_half_rtt_us_p50"], "µs"),
                         rounds_ratio(row, "half_rtt_us_p50", "floor_half_rtt_us_p50")])
    return grid(["half round trip", "ours", "plain socket", "ratio"], rows)


@table("loopback_2core")
def protection(result):
    rows, ciphers = [], []
    for name, row in result["rows"].items():
        if "crc_gbps" in row:
            rows.append([name, spread(row["crc_gbps"], "GB/s"), rounds_ratio(row, "crc_gbps", "gbps"),
                         spread(row["crc_cpu_seconds_per_gb"], "s")])
        elif "TLS" in name:
            rows.append([name, spread(row["gbps"], "GB/s"), rounds_ratio(row, "gbps", "floor_gbps"),
                         spread(row["cpu_seconds_per_gb"], "s")])
            cipher = f"- {name.split(', ', 1)[1]}: {row['security']}"
            ciphers += [] if cipher in ciphers else [cipher]
    return [*grid(["operation", "median (min to max)", "rate / reference", "CPU time per GB"], rows), "", *ciphers]


@table("latency_2core")
def waits(result):
    rows = []
    for name, row in result["rows"].items():
        if "seconds" in row:
            within = sum(value <= 0.25 for value in row["seconds"]["samples"])
            rows.append([name, spread(row["seconds"], "s"), f"{within} of {row['seconds']['n']} within 0.25 s"])
    for name, row in result["rows"].items():
        if "us" in row:
            beside = result["rows"].get(f"{name.rsplit(' ', 1)[0]} wait")
            rows.append([f"64-byte write, {name}", spread(row["us"], "µs"),
                         ratio(middle(row, "us"), middle(beside, "us")) + " of wait()"])
        elif "writes_per_second" in row:
            rows.append([f"64-byte writes of {name}", spread(row["writes_per_second"], "operations/s"), ""])
    return grid(["", "median (min to max)", ""], rows) + origin(result, "latency_2core")


@table("small_messages_2core")
def small_messages(result):
    rows = [[name, brief(row["load_gbps"]) if middle(row, "load_gbps") else "",
             brief(row["median_us"], 1e-3), brief(row["p99_us"], 1e-3)]
            for name, row in result["rows"].items()]
    return grid(["link", "beside it, GB/s", "median, ms", "p99, ms"], rows) + origin(result, "small_messages_2core")


@table("strangers_2core")
def strangers(result):
    rows = [[label(name), spread(row["gbps_beside_flood"], "GB/s"),
             rounds_ratio(row, "gbps_beside_flood", "gbps")] for name, row in result["rows"].items()]
    return grid(["flood", "median (min to max)", "rate / rate without flood"], rows) + origin(result, "strangers_2core")


# Words of older results, and the present ones.
RENAMED = (("strangers", "peers"), ("greetings", "handshakes"), ("the visitor", "the connecting peer"),
           ("those who dribble", "slow senders"), ("200 that dribble", "200 slow senders"),
           ("tensor memory", "wgmma"))


def label(name):
    for old, new in RENAMED:
        name = name.replace(old, new)
    return name


@table("admission_2core")
def admission(result):
    floods = [[name, f"{number(middle(row, 'let_in'))} of {number(middle(row, 'dials'))}",
               spread(row["median_ms"], "ms"), spread(row["slowest_ms"], "ms")]
              for name, row in result["rows"].items() if "let_in" in row]
    herds = [[name, number(middle(row, "failed")), spread(row["median_ms"], "ms"), spread(row["slowest_ms"], "ms")]
             for name, row in result["rows"].items() if "failed" in row]
    hosts = [[f"{number(middle(row, 'interfaces'))} interfaces", spread(row["cpu_ms_per_connect"], "ms"),
              spread(row["write_4k_quiet_ms"], "ms"), spread(row["write_4k_beside_ms"], "ms")]
             for row in result["rows"].values() if "cpu_ms_per_connect" in row]
    return [*grid(["flood", "dials admitted", "median dial", "slowest"], floods), "",
            *grid(["peers that start together", "failed", "median", "slowest"], herds), "",
            *grid(["host", "CPU time per silent connect", "4 KiB write, idle", "during connects"], hosts),
            *origin(result, "admission_2core")]


@table("peer_memory_2core")
def peer_memory(result):
    rows = [[name, row["peers"], row["lanes"], spread(row["mib_above_idle"], "MiB")]
            for name, row in result["rows"].items()]
    return grid(["flood", "peers", "lanes per peer", "above idle"], rows) + origin(result, "peer_memory_2core")


OPERATIONS = {
    "BmWrite": "write of 64 bytes, all at once", "BmRead": "read, the same", "BmPostReceive": "post a receive",
    "BmCancelReceive": "cancel a receive", "BmMatchReceive": "send to a receive that was posted",
    "BmReceiveUnexpected": "receive a message that has arrived", "BmTimeOutReceive": "a receive that times out",
}


@table("operations_2core")
def operations(result):
    rows = []
    for name, row in result["rows"].items():
        benchmark, _, count = name.partition("/")
        if count == "1000":
            cells = [OPERATIONS.get(benchmark, f"`{benchmark}`")]
            for other in ("1000", "60000", "200000"):
                found = result["rows"].get(f"{benchmark}/{other}")
                cells.append(brief(found["cpu_ns"], 1e-3) if found else "")
            last = result["rows"].get(f"{benchmark}/60000")
            cells.append(ratio(middle(last, "cpu_ns"), middle(row, "cpu_ns")) if last else "")
            rows.append(cells)
    head = ["CPU time per operation, n in flight, µs", "1,000", "60,000", "200,000", "growth to 60,000"]
    return grid(head, rows) + origin(result, "operations_2core")


@table("reliability_2core")
def reliability(result):
    rows, last = [], None
    for name, row in result["rows"].items():
        test, _, measured = name.partition(": ")
        if test != last:
            rows.append([f"**{test}**", "", "", ""])
            last = test
        figure = row["figure"]
        rows.append([label(measured), f"{number(figure[row['worst']])} {figure['unit']}", row.get("bound", ""), figure["n"]])
    return grid(["test, and what it measures", "worst", "bound", "n"], rows) + origin(result, "reliability_2core")


def rate_or_failure(row):
    """The rate of one library, and the number of rounds in which it failed."""
    if row is None:
        return ""
    if "gbps" not in row:
        return f"failed in all {row['failed']} rounds"
    failed = f", failed in {row['failed']} of {row['failed'] + row['gbps']['n']} rounds" if row["failed"] else ""
    return spread(row["gbps"], "GB/s") + failed


@table("peers_2core")
def peers(result):
    names = sorted({name.rsplit(", ", 1)[0] for name in result["rows"]}, key=list(
        dict.fromkeys(name.rsplit(", ", 1)[0] for name in result["rows"])).index)
    rows = []
    for name in names:
        cells = [result["rows"].get(f"{name}, {title}") for title in ("reno", "defaults")]
        rows.append([name, *[rate_or_failure(cell) for cell in cells]])
    both = {}
    for title in ("reno", "defaults"):
        for operation, who, best in rivals(result, title):
            both.setdefault(f"**{operation}, over {who}**", {})[title] = f"{best} ×"
    rows += [[name, cells.get("reno", ""), cells.get("defaults", "")] for name, cells in both.items()]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return grid(["64 MiB, median (least to most)", "all under reno", "each with its defaults"], rows) \
        + ["", *wrapped(f"{versions}.")] + origin(result, "peers_2core")


@table("ray_2core")
def ray(result):
    rows = []
    for name, row in result["rows"].items():
        rows.append([name, spread(row["ferry_ms"], "ms"), spread(row["object_store_ms"], "ms"),
                     rounds_ratio(row, "object_store_ms", "ferry_ms"),
                     rounds_ratio(row, "gloo_ms", "ferry_ms") if "gloo_ms" in row else ""])
    return grid(["tensor", "ferry", "object store", "object store / ferry", "gloo / ferry"], rows) \
        + origin(result, "ray_2core")


@table("broadcast_2core")
def broadcast(result):
    what = {"copy": "one copy to one receiver", "well": "all well", "killed": "one killed", "frozen": "one frozen",
            "slow": "one at half the rate from then on"}
    rows = [[what[name], spread(row["others"], "s"), spread(row["others_by_copy"], "×")]
            for name, row in result["rows"].items()]
    row = result["rows"]["well"]
    title = f"{row['bytes'] >> 20} MiB to {row['receivers']} receivers, links of {row['rate']}"
    return grid([title, "the last of those that are left", "by one copy"], rows) + origin(result, "broadcast_2core")


@table("call_costs_2core", "call_costs_h100")
def call_costs(*results):
    lines = []
    for result, file in zip(results, ("call_costs_2core", "call_costs_h100")):
        if result is None:
            continue
        modes = list(dict.fromkeys(row["mode"] for row in result["rows"].values()))
        ops = list(dict.fromkeys(row["op"] for row in result["rows"].values()))
        device = next(iter(result["rows"].values()))["device"]
        rows = [[f"`{op}`", *(f"{number(row['us']['median'])} µs, {number(row['by_addcmul']['median'])} ×"
                              for row in (result["rows"][f"{op}, {mode}"] for mode in modes))] for op in ops]
        lines += [*grid([f"on `{device}`: median, by addcmul.out's", *modes], rows), *origin(result, file), ""]
    return lines[:-1]


@table("soak_2core")
def soak(result):
    (title, row), = result["rows"].items()
    kept = ("bytes", "bytes of GPU memory here", "bytes of GPU memory there")
    rows = [[name, f"{value / 1e9:,.0f} GB" if name in kept else f"{value:,}"] for name, value in row.items()
            if not isinstance(value, bool)]
    return grid([f"in {title}", "count"], rows) + origin(result, "soak_2core")


@table("nccl_net_h200")
def nccl_net(result):
    rows = []
    for row in result["rows"].values():
        if "gbps" in row:
            both = "both ways" if row["both"] else "one way"
            rows.append([f"{row['size'] >> 10} KiB over {row['comms']} comms, {both}", spread(row["gbps"], "GB/s"),
                         spread(row["cpu_seconds_per_gb"], "s/GB")])
        else:
            rows.append([f"{row['size']} bytes, half a round trip, {row['depth']} receives ahead",
                         spread(row["half_rtt_us_p50"], "µs"), f"p99 {spread(row['half_rtt_us_p99'], 'µs')}"])
    return grid(["", "median (min to max)", ""], rows) + origin(result, "nccl_net_h200")


KERNEL_HEAD = ["µs, median (min to max)", "rate", "of a copy", "torch, µs"]


def kernel_cells(row):
    """Time, rate, the share of a copy's rate, and the times of torch."""
    rate = f"{number(row['rate']['median'])} {row['rate']['unit']}" if "rate" in row else ""
    share = ratio(middle(row, "rate"), middle(row, "ceiling_gbps")) if "ceiling_gbps" in row else ""
    others = {key[6:].replace("compile max-", "max-"): value for key, value in row.items()
              if key.startswith("torch ")}
    return [spread(row["us"]), rate, share,
            "; ".join(f"{name} {number(value['median'])}" for name, value in others.items())]
