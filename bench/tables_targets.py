"""The table of docs/engineering/targets.md: goals of the project beside the results that judge them."""
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
        share = rounds_ratio(row, "gbps_beside_flood", "gbps")
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
