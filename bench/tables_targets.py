"""The tables of docs/engineering/targets.md: goals of the project, and figures that the documents which it follows
ask for, beside the results that judge them."""
from tables import grid, label, middle, number, origin, ratio, rounds_ratio, table

# Rates of links and of other peers that tests judge, as a share; the tests hold the same numbers.
LINKS, BYSTANDERS, FLOODS = 0.9, 0.95, 0.9
# Tests allow this much beyond a bound in time (docs/testing.md).
ALLOWANCE_MS = 100
DECODE = "attention_decode bf16 batch={} tokens={} heads=32 kv_heads=8 head_size=128 page=256"
PREFILL = "attention_prefill bf16 batch=1 tokens=16384 heads=32 kv_heads=8 head_size=128, 2 stages"
FUSED = "qk_norm_rope_store bf16 tokens=16384 heads=32 kv_heads=8"


@table("reliability_2core", "strangers_2core", "kernels_h200")
def targets(reliability, pending_peers, kernels):
    rows = [*fault_targets(reliability), *flood_targets(pending_peers), *kernel_targets(kernels)]
    lines = grid(["target", "goal", "measured", "met"], rows)
    for result, file in ((reliability, "reliability_2core"), (pending_peers, "strangers_2core"), (kernels, "kernels_h200")):
        lines += origin(result, file) if result else []
    return lines


def row_of(name, goal, shown, met):
    return [name, goal, shown, "yes" if met else "**no**"]


def fault_targets(result):
    rows, late, bounds, shares = [], 0, 0, {}
    for name, row in result["rows"].items() if result else []:
        worst, unit = row["figure"][row["worst"]], row["figure"]["unit"]
        test, _, measured = name.partition(": ")
        if unit == "ms" and "bound" in row:
            bounds += 1
            late += worst > float(row["bound"]) + ALLOWANCE_MS
        elif unit == "GB/s" and "bound" in row:
            rows.append(row_of(f"{short(test)}: {measured}", f"≥ {row['bound']} GB/s", f"{number(worst)} GB/s",
                               worst >= float(row["bound"])))
        elif unit in ("of the links", "of its rate"):
            shares.setdefault((test, LINKS if unit == "of the links" else BYSTANDERS, unit), []).append(worst)
    for (test, goal, unit), found in shares.items():
        rows.append(row_of(short(test), f"≥ {goal} {unit}", number(min(found)), min(found) >= goal))
    if bounds:
        rows.insert(0, row_of(f"bounds in time of all fault tests, plus {ALLOWANCE_MS} ms", f"{bounds} kept",
                              f"{bounds - late} kept", not late))
    return rows


def short(test):
    return test.split(".", 1)[1]


def flood_targets(result):
    rows = []
    for name, row in result["rows"].items() if result else []:
        share = rounds_ratio(row, "gbps_beside_flood", "gbps").replace("–", " to ")
        rows.append(row_of(f"writes during: {label(name)}", f"≥ {FLOODS} of the rate without", share,
                           float(share.split(" ")[0]) >= FLOODS))
    return rows


def kernel_targets(result):
    found = result["rows"] if result else {}
    rows = []
    for batch, tokens in ((64, 1024), (32, 4096), (64, 4096)):
        row = found.get(DECODE.format(batch, tokens))
        if row:
            share = ratio(middle(row, "rate"), middle(row, "ceiling_gbps"))
            rows.append(row_of(f"attention_decode, batch {batch}, {tokens} tokens", "≥ 0.85 of a copy", share,
                               float(share) >= 0.85))
    row = found.get(DECODE.format(1, 1024))
    if row:
        rows.append(row_of("attention_decode, batch 1, 1024 tokens", "≤ 10 µs", f"{number(middle(row, 'us'))} µs",
                           middle(row, "us") <= 10))
    row = found.get(PREFILL)
    if row:
        rows.append(row_of("attention_prefill by mma.sync, 16384 tokens", "≥ 335 TFLOP/s",
                           f"{number(middle(row, 'rate'))} TFLOP/s", middle(row, "rate") >= 335))
    row = found.get(FUSED)
    if row:
        share = ratio(middle(row, "rate"), middle(row, "ceiling_gbps"))
        rows.append(row_of("qk_norm_rope_store, 16384 tokens, 32 and 8 heads", "≥ 0.93 of a copy", share,
                           float(share) >= 0.93))
    return rows


# ---- of the documents ----------------------------------------------------------------------------

# Machines with results through the plugin.
PLUGIN_FILES = {"unpack_h200": "one H200", "unpack_2xh200": "two H200"}
MIB = 1 << 20


@table("copies_h200", "unpack_h200", "unpack_2xh200", "kernels_h200")
def document_targets(copies, *others):
    unpacks, kernels = dict(zip(PLUGIN_FILES, others)), others[-1]
    sections = {"Why is my unpack kernel slow": [*ladder_targets(copies), *end_targets(unpacks)],
                "TCPX errors and fixes": error_targets(unpacks),
                "Kernels in nano-vllm": speedup_targets(kernels),
                "Asynchronous copies": copy_targets(copies),
                "TCPX transfer test": order_targets(unpacks)}
    rows = [row for title, found in sections.items() for row in ([f"**{title}**", "", "", ""], *found)]
    lines = grid(["target", "goal", "measured", "met"], rows)
    results = {"copies_h200": copies, **unpacks, "kernels_h200": kernels}
    for file, result in results.items():
        lines += origin(result, file) if result else []
    return lines


def at_least(name, goal, value, unit, note=""):
    return judged(name, f"≥ {goal} {unit}", value, unit, note, lambda: value >= goal)


def at_most(name, goal, value, unit, note=""):
    return judged(name, f"≤ {goal} {unit}", value, unit, note, lambda: value <= goal)


def judged(name, goal, value, unit, note, is_met):
    """A row; the value is None where no result has it."""
    if value is None:
        return [name, goal, "not measured", ""]
    return row_of(name, goal, f"{number(value)} {unit}{note}", is_met())


def figure(result, name, key):
    """The median, or None."""
    row = result["rows"].get(name, {}) if result else {}
    return middle(row, key) if key in row else None


def quotient(ours, theirs):
    return None if ours is None or theirs is None else ours / theirs


def worst_of(values, choose):
    """The worst of several, or None where one is missing."""
    values = list(values)
    return None if None in values else choose(values)


def through(result, group, operation, size, key="gbps"):
    """A figure of a transfer through the plugin."""
    shown = f"{size >> 10} KiB" if size >= 1024 else f"{size} B"
    return figure(result, f"through the plugin, {group}: {operation} {shown}", key)


def ladder_targets(copies):
    """By the rungs of `ferry copy-bench --unpack --ladder`: 4 MiB in chunks of 512 KiB."""
    def rung(letter, key):
        rows = copies["rows"].items() if copies else ()
        return next((middle(row, key) for name, row in rows if name.startswith(f"ladder: {letter},")), None)

    rows = []
    for letter, stage, goal, rate, factor in (("b", "1, launcher kept", 45, None, 1.2),
                                              ("c", "2, asynchronous", 1, 0.5, 53),
                                              ("d", "3, memory in advance", 0.5, 1.0, 106),
                                              ("e", "4, one launch", 0.1, 5.0, 530)):
        rows.append(at_most(f"stage {stage}: a chunk", goal, rung(letter, "ms_per_chunk"), "ms"))
        if rate:
            rows.append(at_least(f"stage {stage}: rate", rate, rung(letter, "gbps"), "GB/s"))
        rows.append(at_least(f"stage {stage}: against none", factor,
                             quotient(rung("a", "ms_per_chunk"), rung(letter, "ms_per_chunk")), "×"))
    faster = quotient(rung("f", "ms_per_chunk"), rung("e", "ms_per_chunk"))
    return [*rows, at_least("stage 4: against d2d", 1, faster, "×")]


def end_targets(unpacks):
    """What the document expects of its test, in the end and after the first fixes."""
    rows = []
    for file, machine in PLUGIN_FILES.items():
        result = unpacks[file]
        rate = through(result, "kernel", "write", 4 * MIB)
        rows += [at_most(f"4 MiB through the plugin, {machine}", 10, quotient(4 * MIB / 1e6, rate), "ms"),
                 at_least(f"4 MiB through the plugin, {machine}: rate", 0.5, rate, "GB/s")]
        best, name = max(((middle(row, "gbps"), name) for name, row in (result["rows"] if result else {}).items()
                          if name.startswith("through the plugin, kernel") and "gbps" in row), default=(None, ""))
        name = name.removeprefix("through the plugin, ").replace("65536 KiB", "64 MiB")
        rows.append(at_least(f"in the end, {machine}: 20 to 40 GB/s", 20, best, "GB/s", f" ({name})"))
    return rows


def error_targets(unpacks):
    launch = "kernel, fragments of 4096 bytes"
    rows = []
    for file, machine in PLUGIN_FILES.items():
        result = unpacks[file]
        rate = through(result, "kernel", "write", 64 * MIB)
        milliseconds = quotient(64 * MIB / 1e6, rate)
        alone = quotient(figure(result, launch, "gbps"), figure(result, "dma, fragments of 4096 bytes", "gbps"))
        near = worst_of((quotient(through(result, "kernel", operation, 64 * MIB),
                                  through(result, "dma", operation, 64 * MIB)) for operation in ("write", "read")), min)
        spent = figure(result, launch, "launch_us_per_message")
        rows += [at_most(f"a chunk of 512 KiB read and launched (3), {machine}", 0.015,
                         quotient(spent, 1e3), "ms"),
                 at_most(f"64 MiB, {machine}", 8, milliseconds, "ms"),
                 at_least(f"64 MiB, {machine}: rate", 8, rate, "GB/s"),
                 at_least(f"kernel within 20 % of d2d, unpacking alone, {machine}", 0.8, alone, "×"),
                 at_least(f"kernel within 20 % of d2d, through the plugin, {machine}", 0.8, near, "×"),
                 at_most(f"64 MiB over four interfaces (1), {machine}", 50, milliseconds, "ms"),
                 at_least(f"64 MiB over four interfaces (1), {machine}: rate", 15, rate, "GB/s")]
    return rows


def speedup_targets(kernels):
    """Over torch's ops one by one, at the size where that is least; and over torch.addcmul, one op for a * b + c."""
    rows = []
    for op, variant, baseline, text in (("fused_add_gelu", "exact", "torch eager", "torch"),
                                        ("fused_add_gelu", "tanh", "torch eager", "torch"),
                                        ("element_wise_mul_add", "", "torch eager", "torch"),
                                        ("element_wise_mul_add", "", "torch addcmul", "torch.addcmul")):
        found = {name: quotient(figure(kernels, name, baseline), figure(kernels, name, "us"))
                 for name, row in (kernels["rows"] if kernels else {}).items()
                 if name.startswith(f"{op} ") and form_of(name) == variant and baseline in row}
        shown = f"{op}{f', {variant}' if variant else ''}, against {text}"
        rows.append(at_least(shown, 1.2, min(found.values(), default=None), "×",
                             f", the least of {len(found)} sizes"))
    return rows


def form_of(name):
    """That of a row of fused_add_gelu: it had one form, tanh, before there were two."""
    return (name.rpartition(", ")[2] if ", " in name else "tanh") if name.startswith("fused_add_gelu ") else ""


def copy_targets(copies):
    """The document has no figures: what it says to be faster has to be."""
    pipeline = "pipeline: pinned, pipeline, 4 streams"
    staged = {name: figure(copies, f"staged: {name} stages", "gbps") for name in
              ("registers, 1", "cp.async, 1", "cp.async, 2")}
    overlap = figure(copies, pipeline, "overlap_percent")
    return [at_least("four streams, pinned memory, against blocking", 1, figure(copies, pipeline, "speedup"), "×"),
            judged("four streams: copies and kernels overlap", "> 0 %", overlap, "%", "", lambda: overlap > 0),
            at_least("cp.async against registers", 1, quotient(staged["cp.async, 1"], staged["registers, 1"]), "×"),
            at_least("two buffers against one", 1, quotient(staged["cp.async, 2"], staged["cp.async, 1"]), "×")]


def order_targets(unpacks):
    """The document has an order: the kernel before d2d before the host, in latency and in rate."""
    rows = []
    for file, machine in PLUGIN_FILES.items():
        result = unpacks[file]

        def slower(ours, theirs):
            return worst_of((quotient(through(result, f"latency, {ours}", "write", size, "us_p50"),
                                      through(result, f"latency, {theirs}", "write", size, "us_p50"))
                             for size in (8, 4096, 512 << 10)), max)

        def faster(ours, theirs):
            return quotient(through(result, ours, "read", 64 * MIB), through(result, theirs, "read", 64 * MIB))

        rows += [at_most(f"latency, kernel to d2d, {machine} (2)", 1, slower("kernel", "dma"), "×"),
                 at_most(f"latency, d2d to host, {machine} (2)", 1, slower("dma", "host"), "×"),
                 at_least(f"rate, kernel to d2d, scattered pages, {machine}", 1,
                          faster("kernel, scattered pages", "dma, scattered pages"), "×"),
                 at_least(f"rate, kernel to d2d, {machine}", 1, faster("kernel", "dma"), "×"),
                 at_least(f"rate, d2d to host, {machine}", 1, faster("dma", "host"), "×")]
    return rows
