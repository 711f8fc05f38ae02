"""nano-vllm with and without our kernels, on a model of random weights: nothing is downloaded.

    python -m tensorferry.nanovllm.bench             # Qwen3-0.6B's shape, on the GPU
    python -m tensorferry.nanovllm.bench --check     # whether both choose the same tokens

Ways: `kernels`, our layers and staging; `own`, nano-vllm's layers (with our attention where
flash-attn is not installed); `formulas`, torch's formulas in the place of our kernels, without
CUDA graphs. Each runs in a process of its own.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

_WAYS = ("kernels", "own", "formulas")
# A share of the largest logit: a model of that type does not tell two logits apart that are nearer to
# each other than this.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2**-6, "float16": 2**-9}
# The least share of all tokens that are the reference's own: ties are rare, and an error makes many.
_OWN = 0.9
# Tokens of the first two prompts of --check, at the least: more than nano-vllm's block of 256.
_BLOCK, _LONG = 256, 320
_SHAPE = {
    "layers": 28,
    "hidden": 1024,
    "intermediate": 3072,
    "heads": 16,
    "kv_heads": 8,
    "head_size": 128,
    "vocab": 151936,
}


def _options(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m tensorferry.nanovllm.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default in _SHAPE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), help="bfloat16; on the CPU float32")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512, help="most tokens of one; least: half")
    parser.add_argument("--new", type=int, default=128, help="tokens generated for each")
    parser.add_argument("--ways", help="of kernels, own, formulas; on the CPU without own")
    parser.add_argument("--check", action="store_true", help="compare tokens, not speeds")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--memory", type=float, default=0.8, help="share of the GPU's to be used")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=".", help="folder of profile_trace.json and _report.txt")
    parser.add_argument("--json", help="file for all results")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for each run")
    options = parser.parse_args(arguments)
    on_cpu = options.device == "cpu"
    options.dtype = options.dtype or ("float32" if on_cpu else "bfloat16")
    possible = tuple(way for way in _WAYS if not (on_cpu and way == "own"))
    options.ways = tuple((options.ways or ",".join(possible)).split(","))
    for way in options.ways:
        if way not in possible:
            parser.error(f"--ways has {way!r}; it can have {', '.join(possible)}"
                         + (": nano-vllm's own layers need a GPU" if way == "own" else ""))
    if options.dtype == "float32" and not on_cpu:
        parser.error("--dtype float32 is for the CPU; attention on a GPU has bfloat16 and float16")
    if min(options.sequences, options.prompt, options.new - 1) < 1:
        parser.error("--sequences and --prompt must be 1 or more, and --new 2 or more")
    return options


class RunFailed(Exception):
    """The run of one way has failed; others may go on."""


def _room(sequences):
    """As many as a graph of nano-vllm's takes: 1, 2, 4, 8 and multiples of 16."""
    return -(-sequences // 16) * 16 if sequences > 8 else sequences


class _Bench:
    """Runs on one model."""

    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)

    def write_model(self):
        import torch

        from tensorferry.nanovllm import _model

        shape = {name: getattr(self.options, name) for name in _SHAPE}
        _model.write(self.folder, shape, getattr(torch, self.options.dtype), self.options.seed)

    def _settings(self, way):
        options = self.options
        on_cpu = options.device == "cpu"
        longest = options.prompt + options.new
        engine = {
            "enforce_eager": options.eager or on_cpu,
            "max_model_len": longest,
            "max_num_seqs": _room(options.sequences),
            "gpu_memory_utilization": 1.0 if on_cpu else options.memory,
        }
        if on_cpu:  # it is warmed up with as many
            engine["max_num_batched_tokens"] = 2 * longest
        result = self.folder / f"{way}.json"
        names = ("device", "sequences", "prompt", "new", "seed", "vocab")
        return {name: getattr(options, name) for name in names} | {
            "way": way,
            "model": str(self.folder),
            "engine": engine,
            "temperature": 0.6,
            "follow": None,
            "stage_decode": True,
            "longest": 0,
            "by_batch": False,
            "profile": None,
            "staging": False,
            "result": str(result),
        }

    def run_in_parts(self, way, **changes):
        """Runs it with two prompts that begin alike and are longer than a step."""
        longest = max(self.options.prompt, _LONG)
        # The second finds the common block in the cache: the first step has computed it.
        engine = self._settings(way)["engine"] | {
            "max_model_len": longest + self.options.new,
            "max_num_batched_tokens": max(_BLOCK, longest * 3 // 4),
        }
        return self.run(way, engine=engine, longest=longest, **changes)

    def run(self, way, **changes):
        settings = self._settings(way) | changes
        path = self.folder / f"{way}.settings.json"
        path.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "tensorferry.nanovllm._run", str(path)]
        try:
            ended = subprocess.run(command, timeout=self.options.timeout)
        except subprocess.TimeoutExpired as error:
            raise RunFailed(f"bench: the run of {way} did not end in {self.options.timeout:.0f} s "
                            "(--timeout)") from error
        if ended.returncode != 0:
            raise RunFailed(f"bench: the run of {way} ended with {ended.returncode}; why, it has "
                            "written above")
        return json.loads(pathlib.Path(settings["result"]).read_text())


def _speeds(bench):
    """(whether every way ran, the results of those that did)."""
    options = bench.options
    results, failed = {}, []
    for way in options.ways:
        ours = way == "kernels"
        profile = str(pathlib.Path(options.out).resolve()) if ours else None
        try:
            results[way] = bench.run(way, profile=profile, staging=ours, by_batch=True)
        except RunFailed as error:
            failed.append(str(error))
    print(f"{options.sequences} sequences, prompts up to {options.prompt}, {options.new} new; "
          f"{options.layers} layers of {options.hidden}, {options.dtype}, {options.device}")
    print("way       attention    graphs  prefill tok/s  decode tok/s  generated tok/s  "
          "ms per step  inputs us")
    for way, result in results.items():
        _print(way, result)
    ours = results.get("kernels", {})
    for batch, (staged, separately) in (ours.get("staging_us") or {}).items():
        print(f"staging of {batch:>2} sequences: {staged:.1f} us; a tensor and a copy each: "
              f"{separately:.1f} us")
    # The full cost of a step; the call alone is the smaller part.
    own = results.get("own", {}).get("inputs_us_by_batch") or {}
    for batch, taken in (ours.get("inputs_us_by_batch") or {}).items():
        if batch in own:
            print(f"prepare_decode() of {batch:>2} sequences as a whole: {taken:.1f} us; nano-vllm's own: "
                  f"{own[batch]:.1f} us")
    if ours.get("profile"):
        print(f"profile of the kernels: {options.out}/profile_trace.json, profile_report.txt")
    for sentence in failed:
        print(sentence, file=sys.stderr)
    return not failed, results


def _print(way, result):
    print(f"{way:9} {result['attention']:12} {'yes' if result['graphs'] else 'no':6}  "
          f"{result['prefill_tokens_per_s']:13.1f}  {result['decode_tokens_per_s']:12.1f}  "
          f"{result['generated_tokens_per_s']:15.1f}  {result['decode_step_ms']:11.2f}  "
          f"{result['inputs_us']:9.1f}")
    if way == "own" and result["attention"] == "tensorferry":
        print("          flash-attn is not installed: nano-vllm's layers, but our attention")
    by_batch = result.get("inputs_us_by_batch") or {}
    if by_batch:
        print("          inputs us by sequences: "
              + ", ".join(f"{batch}: {taken:.1f}" for batch, taken in by_batch.items()))
    for name, said in result.get("errors", {}).items():
        print(f"          no {name}: {said}")
    if result["provided"]:
        print(f"          not installed, done by stand-ins: {', '.join(result['provided'])}")


def verdict(gaps, tolerance, expected):
    """(whether all is well, a sentence), of (sequence, step, gap) of each of so many tokens."""
    different = [gap for gap in gaps if not gap[2] <= 0]
    wrong = [gap for gap in gaps if not gap[2] <= tolerance]
    said = f"{len(gaps) - len(different)} of {len(gaps)} tokens are the reference's own"
    if different:
        sequence, step, gap = different[0]
        said += (f"; the first other one is token {step} of sequence {sequence}, {gap:.2g} of the "
                 f"largest logit below; the tolerance is {tolerance:.2g}")
    if wrong:
        sequence, step, gap = wrong[0]
        said += (f"; {len(wrong)} are WRONG, the first token {step} of sequence {sequence}: "
                 f"{gap:.2g}")
    enough = len(gaps) - len(different) >= _OWN * len(gaps)
    if not enough:
        said += f"; that is less than {_OWN:.0%}"
    if len(gaps) != expected:
        said += f"; there should be {expected} tokens"
    return not wrong and enough and len(gaps) == expected > 0, said


def _check(bench):
    """Greedy tokens of our kernels, each judged by the formulas after the same tokens before it."""
    greedy = {"temperature": 1e-6}  # less than nano-vllm allows is 1e-10
    options = bench.options
    kernels = bench.run_in_parts("kernels", **greedy)
    # Without staging, so that it is judged, too.
    follow = str(bench.folder / "kernels.json")
    reference = bench.run_in_parts("formulas", follow=follow, stage_decode=False, **greedy)
    expected = options.sequences * options.new
    well, said = verdict(reference["gaps"], TOLERANCE[options.dtype], expected)
    said += f"; {kernels['paged_prefills']} prefills found keys in the caches"
    well = well and kernels["paged_prefills"] > 0
    print(f"{'passed' if well else 'FAILED'}: {said}")
    return well, {"kernels": kernels, "formulas": reference, "passed": well, "verdict": said}


def main(arguments=None):
    options = _options(arguments)
    from tensorferry import errors, nanovllm

    try:
        nanovllm.find()
    except errors.Error as error:
        raise SystemExit(f"bench: {error}") from error
    import torch  # nano-vllm has it

    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("bench: torch finds no GPU; --device cpu runs the CPU's kernels, for which "
                         "--layers 2 --hidden 256 is large enough")
    with tempfile.TemporaryDirectory(prefix="tensorferry-bench-") as folder:
        bench = _Bench(options, folder)
        bench.write_model()
        try:
            well, results = _check(bench) if options.check else _speeds(bench)
        except RunFailed as error:
            raise SystemExit(str(error)) from error
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
