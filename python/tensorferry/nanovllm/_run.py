"""One run of nano-vllm's engine, for bench.py, in a process of its own: _run SETTINGS.json."""

import atexit
import contextlib
import gc
import json
import pathlib
import random
import statistics
import sys
import time

import torch

import tensorferry
from tensorferry import _core, errors, kernels, nanovllm, staging
from tensorferry.nanovllm import _cpu, _missing

# The sequences of which steps' inputs are timed, the steps of each, and the seconds for all.
_BATCHES = (1, 4, 8, 16, 32)
_STEPS = 32
_SECONDS = 60.0
# The common prefix of the prompts of --check: a block of nano-vllm's cache, which it then shares.
COMMON = 256


class _NoTokenizer:
    """Prompts are tokens already, and nobody reads the answers."""

    eos_token_id = -1

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()


def make_engine(settings):
    """(nano-vllm's modules, an LLM) on our layers or its own, as settings say."""
    nano = nanovllm.load()
    if settings["way"] != "own":
        nanovllm.enable(
            use_custom_kernels=settings["way"] == "kernels",
            stage_decode=settings.get("stage_decode", True),
        )
    # It keeps the table of the last model, which may be on another device.
    nano.rotary_embedding.get_rope.cache_clear()
    import nanovllm as package
    from nanovllm.engine import llm_engine

    llm_engine.AutoTokenizer = _NoTokenizer
    return nano, package.LLM(settings["model"], **settings["engine"])


def end(llm):
    """Now, and not when the process ends, which it would do a second time."""
    atexit.unregister(llm.exit)
    llm.exit()
    gc.collect()  # modules and what replaced their methods hold each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # the next engine asks the driver what is free


class Followed:
    """Gives sequences the tokens of another run, and records what this one would have chosen."""

    def __init__(self, runner, tokens):
        # (sequence, step, how much less its logit is, as a share of the largest)
        self.gaps = []
        self._run, self._tokens, self._seqs = runner.run, tokens, []
        self._first_id = None  # of the sequences; they have not run before
        runner.run, runner.sampler = self.run, self.sample

    def run(self, seqs, is_prefill):
        self._seqs = seqs
        if self._first_id is None:
            self._first_id = seqs[0].seq_id
        return self._run(seqs, is_prefill)

    def sample(self, logits, _temperatures):
        logits = logits.float()
        places = [(seq.seq_id - self._first_id, seq.num_completion_tokens) for seq in self._seqs]
        wanted = torch.tensor([self._tokens[i][step] for i, step in places]).to(logits.device)
        chosen = logits.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        gaps = (logits.amax(-1) - chosen) / logits.abs().amax(-1)
        for seq, place, gap in zip(self._seqs, places, gaps.tolist()):
            if seq.num_cached_tokens + seq.num_scheduled_tokens == seq.num_tokens:
                self.gaps.append((*place, gap))  # not of a prompt of which a part is to come
        return wanted


def generate(llm, prompts, parameters):
    """(tokens of each prompt, seconds and tokens of each step: negative ones are decoded)."""
    for prompt in prompts:
        llm.add_request(prompt, parameters)
    answers, steps = {}, []
    while not llm.is_finished():
        start = time.perf_counter()
        ended, count = llm.step()  # which ends with the tokens on the host
        steps.append((time.perf_counter() - start, count))
        answers.update(ended)
    return [answers[key] for key in sorted(answers)], steps


def _inputs_timed(runner):
    """A list that gets (sequences, the host's seconds in prepare_decode) of each step."""
    method, taken = runner.prepare_decode, []

    def call(seqs):
        start = time.perf_counter()
        result = method(seqs)
        taken.append((len(seqs), time.perf_counter() - start))
        return result

    runner.prepare_decode = call
    return taken


def _paged_counted(nano, runner):
    """A list that gets an item for each prefill that finds keys in the caches."""
    method, paged = runner.run_model, []

    def call(input_ids, positions, is_prefill):
        if is_prefill and nano.context.get_context().block_tables is not None:
            paged.append(len(input_ids))
        return method(input_ids, positions, is_prefill)

    runner.run_model = call
    return paged


def _summary(steps, inputs):
    prefill = [(seconds, count) for seconds, count in steps if count > 0]
    decode = [(seconds, -count) for seconds, count in steps if count < 0]

    def rate(part):
        return sum(count for _, count in part) / max(sum(seconds for seconds, _ in part), 1e-9)

    return {
        "prefill_tokens_per_s": rate(prefill),
        "decode_tokens_per_s": rate(decode),
        "generated_tokens_per_s": sum(count for _, count in decode)
        / sum(seconds for seconds, _ in steps),
        "decode_step_ms": statistics.median(seconds for seconds, _ in decode) * 1e3,
        "inputs_us": statistics.median(seconds for _, seconds in inputs) * 1e6,
    }


def _prompts(settings):
    generator = random.Random(settings["seed"])

    def tokens(count):
        return [generator.randrange(settings["vocab"]) for _ in range(count)]

    most = settings["prompt"]
    prompts = [
        tokens(generator.randint((most + 1) // 2, most)) for _ in range(settings["sequences"])
    ]
    if settings["longest"]:  # two of these, or one, which are computed in parts
        common = tokens(COMMON)
        for at in range(min(2, len(prompts))):
            prompts[at] = common + tokens(settings["longest"] - COMMON)
    return prompts


def _inputs_by_batch(llm, parameters, settings, inputs):
    """The host's microseconds for a step's inputs, medians, by sequences: as many as fit a run."""
    generator = random.Random(settings["seed"] + 1)
    length, deadline = min(settings["prompt"], 16), time.monotonic() + _SECONDS
    found = {}
    for batch in _BATCHES:
        if batch > settings["engine"]["max_num_seqs"] or time.monotonic() > deadline:
            break
        del inputs[:]
        prompts = [
            [generator.randrange(settings["vocab"]) for _ in range(length)] for _ in range(batch)
        ]
        generate(llm, prompts, parameters(min(settings["new"], _STEPS + 1)))
        taken = [seconds for count, seconds in inputs if count == batch]
        if taken:
            found[batch] = statistics.median(taken) * 1e6
    return found


def _try(result, name, function):
    """result[name], or why there is none: what was measured before is worth keeping."""
    try:
        result[name] = function()
    except Exception as error:
        result[name] = None
        result.setdefault("errors", {})[name] = f"{type(error).__name__}: {error}"


def _profiled(llm, folder, prompts, parameters):
    with tensorferry.profile(folder):
        generate(llm, [prompt[2:] or [1] for prompt in prompts], parameters(4))
    return folder


def run(settings):
    nano, llm = make_engine(settings)
    runner = llm.model_runner
    from nanovllm import SamplingParams

    def parameters(new):
        return SamplingParams(
            temperature=settings["temperature"], max_tokens=new, ignore_eos=True
        )

    prompts = _prompts(settings)
    followed = None
    if settings["follow"]:
        tokens = json.loads(pathlib.Path(settings["follow"]).read_text())["tokens"]
        followed = Followed(runner, tokens)
    elif not settings["longest"]:  # others, as prompts that are known are not computed again
        generate(llm, [prompt[1:] or [0] for prompt in prompts], parameters(4))
    inputs, paged = _inputs_timed(runner), _paged_counted(nano, runner)
    answers, steps = generate(llm, prompts, parameters(settings["new"]))
    result = _summary(steps, inputs)
    result |= {"way": settings["way"], "graphs": not runner.enforce_eager, "tokens": answers}
    result["attention"] = _attention_of(nano, settings["way"])
    result["gaps"] = followed.gaps if followed else None
    result["paged_prefills"] = len(paged)
    _measure_more(result, llm, settings, prompts, (parameters, inputs))
    _try(result, "ended", lambda: end(llm))
    return result


def _measure_more(result, llm, settings, prompts, run_with):
    parameters, inputs = run_with
    if settings["by_batch"]:
        _try(result, "inputs_us_by_batch",
             lambda: _inputs_by_batch(llm, parameters, settings, inputs))
    if settings["staging"]:
        _try(result, "staging_us", lambda: {
            batch: staging.measure(batch, settings["device"]) for batch in (1, 2, 4, 8, 16, 32)
        })
    if settings["profile"]:
        _try(result, "profile",
             lambda: _profiled(llm, settings["profile"], prompts, parameters))


def check_kernels(nano, way, device):
    """That ours really run where the way has them: formulas in their place would not be told."""
    if way == "formulas" or _attention_of(nano, way) == "flash-attn":
        return
    if not kernels.KERNELS_AVAILABLE:
        raise errors.Unsupported(
            f"the run of {way} needs our kernels, and TENSORFERRY_DISABLE_KERNELS switches them "
            "off: unset it, or leave this way out (--ways)"
        )
    if device == "cuda" and not _core.kernels.has_device_code:
        raise errors.Unsupported(
            f"the run of {way} needs our kernels, and this build of tensorferry has none for GPUs: "
            "build it with CUDA, or leave this way out (--ways)"
        )


def _attention_of(nano, way):
    if way == "own":
        ours = nano.attention.flash_attn_varlen_func is _missing.flash_attn_varlen_func
        return "tensorferry" if ours else "flash-attn"
    return "tensorferry" if way == "kernels" else "torch"


def main(path):
    settings = json.loads(pathlib.Path(path).read_text())
    provided = _missing.provide_others()
    on_cpu = settings["device"] == "cpu"
    nano = nanovllm.load()  # first: torch's compiler takes no other functions for torch's own
    try:
        check_kernels(nano, settings["way"], settings["device"])
    except errors.Error as error:
        raise SystemExit(f"bench: {error}") from error
    # Caches take no memory before they are written.
    with _cpu.engine_on_cpu(1 << 30) if on_cpu else contextlib.nullcontext():
        result = run(settings)
    result["provided"] = provided
    pathlib.Path(settings["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
