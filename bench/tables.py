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
    """"13.1 GB/s (12.8–13.6)"."""
    if value is None:
        return ""
    middle, least, most = (number(value[key] * scale) for key in ("median", "min", "max"))
    shown = f"{middle} {unit}".strip()
    return shown if value["n"] == 1 or least == most else f"{shown} ({least}–{most})"


def middle(row, key):
    return row[key]["median"]


def ratio(ours, theirs):
    return f"{ours / theirs:.2f}"


def rounds_ratio(row, ours, theirs):
    """The median of the ratios of each round, with their range."""
    pairs = sorted(a / b for a, b in zip(row[ours]["samples"], row[theirs]["samples"]))
    half = len(pairs) // 2
    centre = pairs[half] if len(pairs) % 2 else (pairs[half - 1] + pairs[half]) / 2
    return f"{centre:.2f} ({pairs[0]:.2f}–{pairs[-1]:.2f})"


def grid(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


# Options whose values are paths of the machine that measured; others change what is measured.
PATH_OPTIONS = re.compile(r" --(?:build|json|nccl|null|out|plugin|programs|python|rows)[ =]\S+")


def machine_of(result):
    """The machine without the suffix by which a distribution or provider names its build of the kernel."""
    return re.sub(r"(Linux \d+(?:\.\d+)+)-[^\s,]+", r"\1", result["machine"])


def command_of(result):
    first, *others = PATH_OPTIONS.sub("", result["command"]).split("; ")
    return f"{first}; …" if others else first


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
    """The files of each commit."""
    commits = {}
    for file, result in zip(all_results(), results):
        commit = f"`{result['commit'][:8]}`" if result else "not measured on this code"
        older = " (older format)" if is_earlier(file) else ""
        commits.setdefault(commit + older, []).append(f"[{file}](../bench/results/{path_of(file)})" if result else file)
    return [line for commit, files in commits.items() for line in
            textwrap.wrap(f"- {commit}: {', '.join(files)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)]


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
            rows.append([shown, "NIXL over UCX, default settings", *map(spread, pair)])
    for case, who, names in (("write", "UCX, its fastest way", ("ucx put", "ucx tag", "ucx am")),
                             ("read", "UCX, tuned", ("ucx get", "ucx get tuned")),
                             ("read", "Mooncake", ("mooncake read",))):
        theirs = max((row["gbps"] for _, row in named(peers, *(f"{name}, reno" for name in names))),
                     key=lambda value: value["median"], default=None)
        for _, row in named(peers, f"ferry {case}, reno") if theirs else []:
            rows.append([f"{case}, host memory, two cores", who, spread(theirs), spread(row["gbps"])])
    return grid(["64 MiB over loopback", "compared with", "GB/s of that", "GB/s of Tensorferry"], rows)


# ---- host memory --------------------------------------------------------------------------------


@table("loopback_2core")
def loopback(result):
    rows = []
    for name, row in result["rows"].items():
        if "half_rtt_us_p50" in row or "crc_gbps" in row or "TLS" in name or "blocks, pages" in name:
            continue
        rate = spread(row["gbps"], "GB/s")
        if row["size"] < 1 << 20:
            rate = spread(row["ops_per_second"], "operations/s")
        rows.append([name, rate, rounds_ratio(row, "gbps", "floor_gbps")])
    return grid(["operation", "median (min–max)", "rate / floor"], rows) \
        + origin(result, "loopback_2core")


def link_rows(result):
    """Of 64 MiB."""
    rows = [[name, spread(row["gbps"]),
             rounds_ratio(row, "gbps", "floor_gbps") if "floor_gbps" in row else "not measured"]
            for name, row in result["rows"].items() if " 64 MiB" in name]
    return grid(["operation", "GB/s", "rate / floor"], rows)


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
            rows.append([name, spread(row["half_rtt_us_p50"]), spread(row["floor_half_rtt_us_p50"]),
                         rounds_ratio(row, "half_rtt_us_p50", "floor_half_rtt_us_p50")])
    return grid(["half round trip, µs", "ours", "plain socket", "ratio"], rows)


@table("loopback_2core")
def protection(result):
    rows, ciphers = [], []
    for name, row in result["rows"].items():
        if "crc_gbps" in row:
            rows.append([name, spread(row["crc_gbps"]), rounds_ratio(row, "crc_gbps", "gbps"),
                         spread(row["crc_cpu_seconds_per_gb"])])
        elif "TLS" in name:
            rows.append([name, spread(row["gbps"]), rounds_ratio(row, "gbps", "floor_gbps"),
                         spread(row["cpu_seconds_per_gb"])])
            cipher = f"- {name.split(', ', 1)[1]}: {row['security']}"
            ciphers += [] if cipher in ciphers else [cipher]
    return [*grid(["operation", "GB/s", "rate / reference", "CPU seconds per GB"], rows), "", *ciphers]


@table("latency_2core")
def waits(result):
    """Deadlines while the other thread never pauses, each way to wait, and one and 256 threads."""
    rows = []
    for name, row in result["rows"].items():
        if "seconds" in row and name.endswith(" 0 us"):
            within = sum(value <= 0.25 for value in row["seconds"]["samples"])
            rows.append([name, spread(row["seconds"], "s"), f"{within} of {row['seconds']['n']} within 0.25 s"])
        elif "us" in row:
            beside = result["rows"].get(f"{name.rsplit(' ', 1)[0]} wait")
            rows.append([f"64-byte write, {name}", spread(row["us"], "µs"),
                         ratio(middle(row, "us"), middle(beside, "us")) + " of wait()"])
        elif name in ("1 threads", "256 threads"):
            rows.append([f"64-byte writes of {name}", spread(row["writes_per_second"], "operations/s"), ""])
    return grid(["", "median (min–max)", ""], rows) + origin(result, "latency_2core")


@table("small_messages_2core")
def small_messages(result):
    rows = [[name, spread(row["load_gbps"]) if middle(row, "load_gbps") else "",
             spread(row["median_us"], "", 1e-3), spread(row["p99_us"], "", 1e-3)]
            for name, row in result["rows"].items()]
    return grid(["link", "beside it, GB/s", "median, ms", "p99, ms"], rows) + origin(result, "small_messages_2core")


@table("strangers_2core")
def strangers(result):
    rows = [[label(name), spread(row["gbps_beside_flood"]),
             rounds_ratio(row, "gbps_beside_flood", "gbps")] for name, row in result["rows"].items()]
    return grid(["flood", "GB/s", "share of the rate without a flood"], rows) + origin(result, "strangers_2core")


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
    """Of each flood the number of lanes whose slowest dial took longest."""
    worst = {}
    for name, row in sorted(result["rows"].items(), key=lambda item: middle(item[1], "slowest_ms")
                            if "let_in" in item[1] else 0):
        if "let_in" in row:
            worst[name.split(",")[0]] = [name, f"{number(middle(row, 'let_in'))} of {number(middle(row, 'dials'))}",
                                         spread(row["median_ms"]), spread(row["slowest_ms"])]
    herds = [[name, number(middle(row, "failed")), spread(row["median_ms"]), spread(row["slowest_ms"])]
             for name, row in result["rows"].items() if name.startswith("herd 256x8")]
    hosts = [[f"{number(middle(row, 'interfaces'))} interfaces", spread(row["cpu_ms_per_connect"]),
              spread(row["write_4k_quiet_ms"]), spread(row["write_4k_beside_ms"])]
             for row in result["rows"].values() if "cpu_ms_per_connect" in row]
    return [*grid(["flood", "dials admitted", "median dial, ms", "slowest, ms"], worst.values()), "",
            *grid(["peers that start together", "failed", "median, ms", "slowest, ms"], herds), "",
            *grid(["ms", "CPU time per silent connect", "4 KiB write, idle", "during connects"], hosts),
            *origin(result, "admission_2core")]


@table("peer_memory_2core")
def peer_memory(result):
    rows = [[name, row["peers"], row["lanes"], spread(row["mib_above_idle"], "MiB")]
            for name, row in result["rows"].items()]
    return grid(["flood", "peers", "lanes per peer", "above idle"], rows) + origin(result, "peer_memory_2core")


OPERATIONS = {
    "BmWrite": "write of 64 bytes, all at once", "BmRead": "read, the same", "BmPostReceive": "post a receive",
    "BmCancelReceive": "cancel a receive", "BmMatchReceive": "send to a receive that was posted",
    "BmMatchMessage": "receive a message that has arrived", "BmDeadline": "a receive that times out",
}


@table("operations_2core")
def operations(result):
    """Whole operations; the file has the steps in each table, too."""
    rows = []
    for benchmark, what in OPERATIONS.items():
        few, many = (result["rows"][f"{benchmark}/{count}"] for count in (1000, 60000))
        rows.append([what, *(spread(row["cpu_ns"], "", 1e-3) for row in (few, many)),
                     ratio(middle(many, "cpu_ns"), middle(few, "cpu_ns"))])
    head = ["CPU time per operation, n in flight, µs", "1,000", "60,000", "growth"]
    return grid(head, rows) + origin(result, "operations_2core")


@table("reliability_2core")
def reliability(result):
    """For each test and unit, of all its forms, only what is nearest to its bound or furthest beyond it; rates
    are among the targets."""
    shown = {}
    for name, row in result["rows"].items():
        if row["worst"] == "min":
            continue
        test, figure = re.sub(r"^\w+/|/\w+(?=:)|: .*", "", name), row["figure"]
        unit, value = figure["unit"], figure["max"]
        beyond = value - float(row.get("bound", 0))
        cells = [test, f"{number(value)} {unit}".removesuffix(" ms"), row.get("bound", "")]
        shown[test, unit] = max(shown.get((test, unit), (beyond, cells)), (beyond, cells), key=lambda pair: pair[0])
    return grid(["test", "worst, ms", "bound"], [cells for _, cells in shown.values()]) \
        + origin(result, "reliability_2core")


def rate_or_failure(row):
    """The rate of one library, and the number of rounds in which it failed."""
    if row is None:
        return ""
    if "gbps" not in row:
        return f"failed in all {row['failed']} rounds"
    failed = f", failed in {row['failed']} of {row['failed'] + row['gbps']['n']} rounds" if row["failed"] else ""
    return spread(row["gbps"]) + failed


@table("peers_2core")
def peers(result):
    """Of each library's ways to do something the fastest of either column, and those that failed."""
    titles = ("reno", "defaults")
    found, best = {}, {}
    for key, row in result["rows"].items():
        name, _, title = key.rpartition(", ")
        found.setdefault(name, {})[title] = row
        library = name.removeprefix("Debian's ").split(" ")[0], operation_of(name), title
        if "gbps" in row and middle(row, "gbps") > middle(best.get(library, (0, {"gbps": {"median": 0}}))[1], "gbps"):
            best[library] = name, row
    fastest = {name for name, _ in best.values()}
    rows = []
    for name, columns in found.items():
        if name in fastest or any(row["failed"] for row in columns.values()):
            cells = []
            for title in titles:
                row, (_, ours) = columns.get(title), best.get(("ferry", operation_of(name), title), (None, None))
                times = ours and row and "gbps" in row and not name.startswith("ferry ")
                cells += [rate_or_failure(row), ratio(middle(ours, "gbps"), middle(row, "gbps")) if times else ""]
            rows.append([name, *cells])
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return grid(["64 MiB, GB/s", "all under reno", "ours / it", "each with its defaults", "ours / it"], rows) \
        + ["", *wrapped(f"{versions}.")] + origin(result, "peers_2core")


def operation_of(name):
    """Ours that does what this of another library does."""
    name, _, blocks = name.partition(", ")
    what = {"put": "write", "tag": "write", "am": "write", "get": "read"}
    found = next((what.get(word, word) for word in name.split(" ") if word in (*what, "write", "read")), name)
    return f"{found}, {blocks}" if blocks else found


@table("ray_2core")
def ray(result):
    rows = []
    for name, row in result["rows"].items():
        rows.append([name, spread(row["ferry_ms"]), spread(row["object_store_ms"]),
                     rounds_ratio(row, "object_store_ms", "ferry_ms"),
                     rounds_ratio(row, "gloo_ms", "ferry_ms") if "gloo_ms" in row else ""])
    return grid(["tensor", "ferry, ms", "object store, ms", "object store / ferry", "gloo / ferry"], rows) \
        + origin(result, "ray_2core")


@table("broadcast_2core")
def broadcast(result):
    what = {"copy": "one copy to one receiver", "well": "all well", "killed": "one killed", "frozen": "one frozen",
            "slow": "one at half the rate from then on"}
    rows = [[what[name], spread(row["others"]), spread(row["others_by_copy"])]
            for name, row in result["rows"].items()]
    row = result["rows"]["well"]
    title = f"{row['bytes'] >> 20} MiB to {row['receivers']} receivers, links of {row['rate']}"
    return grid([title, "the last of those that are left, s", "by one copy"], rows) + origin(result, "broadcast_2core")


@table("call_costs_2core", "call_costs_h100")
def call_costs(*results):
    lines = []
    for result, file in zip(results, ("call_costs_2core", "call_costs_h100")):
        if result is None:
            continue
        modes = list(dict.fromkeys(row["mode"] for row in result["rows"].values()))
        ops = dict.fromkeys(row["op"] for row in result["rows"].values() if not re.search("silu|add_rms", row["op"]))
        device = next(iter(result["rows"].values()))["device"]
        rows = [[f"`{op}`", *(f"{number(row['us']['median'])}, {number(row['by_addcmul']['median'])}"
                              for row in (result["rows"][f"{op}, {mode}"] for mode in modes))] for op in ops]
        lines += [*grid([f"on `{device}`: µs, by addcmul.out's", *modes], rows), *origin(result, file), ""]
    return lines[:-1]


@table("soak_2core")
def soak(result):
    (title, row), = result["rows"].items()
    rows = [[name, f"{value / 1e9:,.0f} GB" if name == "bytes" else f"{value:,}"]
            for name, value in row.items() if name.startswith(("fault: ", "seconds")) or name == "bytes"]
    return grid([f"in {title}", "count"], rows) + origin(result, "soak_2core")


NCCL_NET_SIZES = (8, 4 << 10, 4 << 20)


@table("nccl_net_h200")
def nccl_net(result):
    rows = []
    for row in result["rows"].values():
        if row["size"] not in NCCL_NET_SIZES or (row["comms"] != 4 if "gbps" in row else row["depth"] > 1):
            continue
        if "gbps" in row:
            both = "both ways" if row["both"] else "one way"
            rows.append([f"{row['size'] >> 10} KiB over {row['comms']} comms, {both}", spread(row["gbps"], "GB/s"),
                         spread(row["cpu_seconds_per_gb"], "s/GB")])
        else:
            rows.append([f"{row['size']} bytes, half a round trip",
                         spread(row["half_rtt_us_p50"], "µs"), f"p99 {spread(row['half_rtt_us_p99'], 'µs')}"])
    return grid(["", "median (min–max)", ""], rows) + origin(result, "nccl_net_h200")
