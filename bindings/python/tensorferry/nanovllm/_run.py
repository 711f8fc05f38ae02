"""One run of nano-vllm's engine, for bench.py, in a process of its own: _run SETTINGS.json."""

import atexit
import contextlib
import json
import pathlib
import random
import statistics
import sys
import time

import torch

import tensorferry
from tensorferry import nanovllm, staging
from tensorferry.nanovllm import _cpu, _missing


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
        nanovllm.enable(use_custom_kernels=settings["way"] == "kernels")
    import nanovllm as package
    from nanovllm.engine import llm_engine

    llm_engine.AutoTokenizer = _NoTokenizer
    return nano, package.LLM(settings["model"], **settings["engine"])


def end(llm):
    """Now, and not when the process ends, which it would do a second time."""
    atexit.unregister(llm.exit)
    llm.exit()


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


def _timed(runner, name, taken):
    """Adds the host's seconds in a method of the runner to the last of `taken`."""
    method = getattr(runner, name)

    def call(*arguments):
        start = time.perf_counter()
        result = method(*arguments)
        taken.append(time.perf_counter() - start)
        return result

    setattr(runner, name, call)


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
        "inputs_us": statistics.median(inputs) * 1e6 if inputs else None,
    }


def run(settings):
    nano, llm = make_engine(settings)
    runner = llm.model_runner
    from nanovllm import SamplingParams

    def parameters(new):
        return SamplingParams(
            temperature=settings["temperature"], max_tokens=new, ignore_eos=True
        )

    generator = random.Random(settings["seed"])
    prompts = [
        [
            generator.randrange(settings["vocab"])
            for _ in range(generator.randint((settings["prompt"] + 1) // 2, settings["prompt"]))
        ]
        for _ in range(settings["sequences"])
    ]
    followed = None
    if settings["follow"]:
        tokens = json.loads(pathlib.Path(settings["follow"]).read_text())["tokens"]
        followed = Followed(runner, tokens)
    else:  # of other lengths, as prompts that are known already are not computed again
        generate(llm, [prompt[1:] or [0] for prompt in prompts], parameters(4))
    inputs = []
    _timed(runner, "prepare_decode", inputs)
    answers, steps = generate(llm, prompts, parameters(settings["new"]))
    result = _summary(steps, inputs)
    result |= {"way": settings["way"], "graphs": not runner.enforce_eager, "tokens": answers}
    result["attention"] = _attention_of(nano, settings["way"])
    result["gaps"] = followed.gaps if followed else None
    if settings["profile"]:
        with tensorferry.profile(settings["profile"]):
            generate(llm, [prompt[2:] or [1] for prompt in prompts], parameters(4))
    if settings["staging"]:
        result["staging_us"] = {
            batch: staging.measure(batch, settings["device"]) for batch in (1, 2, 4, 8, 16, 32)
        }
    end(llm)
    return result


def _attention_of(nano, way):
    if way == "own":
        ours = nano.attention.flash_attn_varlen_func is _missing.flash_attn_varlen_func
        return "tensorferry" if ours else "flash-attn"
    return "tensorferry" if way == "kernels" else "torch"


def main(path):
    settings = json.loads(pathlib.Path(path).read_text())
    provided = _missing.provide_others()
    on_cpu = settings["device"] == "cpu"
    nanovllm.load()  # first: torch's compiler takes no other functions for torch's own
    with _cpu.engine_on_cpu() if on_cpu else contextlib.nullcontext():
        result = run(settings)
    result["provided"] = provided
    pathlib.Path(settings["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
