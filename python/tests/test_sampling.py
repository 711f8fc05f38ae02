"""Draws follow torch's generators, differ from row to row, and cost no compilation."""

import numpy as np
import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch._dynamo.testing  # noqa: E402
from tensorferry import _formulas, kernels  # noqa: E402

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=on_a_gpu)]
on_each_device = pytest.mark.parametrize("device", DEVICES)
VOCABULARY = 100_003  # equal logits: two draws agree once in so many


def equal(rows, device):
    return torch.zeros(rows, VOCABULARY, device=device), torch.ones(rows, device=device)


@on_each_device
def test_rows_of_one_seed_have_nothing_in_common_with_those_of_the_next(device):
    logits, heat = equal(4, device)
    drawn = [set(kernels.sample(logits, heat, seed=seed).tolist()) for seed in range(4)]
    assert len(set.union(*drawn)) >= 15


@on_each_device
def test_seeds_may_be_tensors_of_one_or_of_each_row(device):
    logits, heat = equal(3, device)
    one = kernels.sample(logits, heat, seed=-7, step=2)
    tensors = {"seeds": torch.tensor([-7], device=device), "steps": torch.tensor([2], device=device)}
    assert torch.equal(kernels.sample(logits, heat, **tensors), one)
    own = torch.tensor([5, 6, 5], device=device)
    drawn = kernels.sample(logits, heat, seeds=own)
    assert drawn[0] == drawn[2] != drawn[1]
    alone = kernels.sample(logits[:1], heat[:1], seeds=own[1:2])  # in another batch
    assert alone[0] == drawn[1]


@on_each_device
@pytest.mark.parametrize("ops", [kernels, _formulas], ids=["kernels", "formulas"])
def test_the_formula_takes_the_same_seeds(device, ops):
    logits, heat = equal(3, device)
    seeds = torch.tensor([5, 6, 5], device=device)
    drawn = ops.sample(logits, heat, seeds=seeds)
    assert drawn[0] == drawn[2] != drawn[1]
    first = ops.sample(logits, heat, seed=1)
    assert len(set(first.tolist())) == 3
    assert torch.equal(first, ops.sample(logits, heat, seed=1))
    assert not torch.equal(first, ops.sample(logits, heat, seed=1, step=1))


@on_each_device
@pytest.mark.parametrize("which", ["seeds", "steps"])
@pytest.mark.parametrize("ops", [kernels, _formulas], ids=["kernels", "formulas"])
def test_numbers_of_some_rows_only_are_refused(device, ops, which):
    logits, heat = equal(4, device)
    for count in (2, 3, 5):
        numbers = torch.arange(count, device=device)
        with pytest.raises(tensorferry.InvalidArgument, match=f"sample: {which} .* must "):
            ops.sample(logits, heat, **{"seeds": torch.arange(4, device=device), which: numbers})


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"top_k": 5}, "sample: top_k is 5, of type int; it must be a torch tensor"),
        ({"top_p": 0.9}, "sample: top_p is 0.9, of type float; it must be a torch tensor"),
        ({"temperatures": [1.0, 1.0]}, "sample: temperatures is .*, of type list"),
        ({"seeds": np.arange(2)}, "sample: seeds is .*, of type ndarray; it must be a torch tensor"),
        ({"seed": 1 << 63}, r"sample: seed is 9223372036854775808, .* must be from -2\^63 to 2\^63 - 1"),
        ({"seed": -(1 << 63) - 1}, "sample: seed is -9223372036854775809"),
        ({"seed": 1.5}, "sample: seed is 1.5, of type float; it must be an int"),
        ({"step": "3"}, "sample: step is '3', of type str"),
    ],
)
def test_an_argument_of_another_type_is_named(monkeypatch, available, given, said):
    monkeypatch.setattr(kernels, "KERNELS_AVAILABLE", available)
    logits, heat = equal(2, "cpu")
    with pytest.raises(tensorferry.InvalidArgument, match=said):
        kernels.sample(logits, **{"temperatures": heat} | given)


@pytest.mark.parametrize("seed", [(1 << 63) - 1, -(1 << 63), np.int64(7), True])
def test_every_seed_of_64_bits_is_taken(seed):
    logits, heat = equal(2, "cpu")
    assert torch.equal(kernels.sample(logits, heat, seed=seed), kernels.sample(logits, heat, seed=int(seed)))


@on_each_device
@pytest.mark.parametrize("ops", [kernels, _formulas], ids=["kernels", "formulas"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_of_top_k_and_top_p_means_what_is_documented(device, ops, dtype):
    rows, chance = 400, torch.tensor([0.4, 0.3, 0.2, 0.1], device=device)
    logits = chance.log().to(dtype).expand(rows, -1).contiguous()
    heat = torch.ones(rows, device=device)

    def drawn(**numbers):
        kinds = {"top_k": torch.int32, "top_p": torch.float32}
        given = {
            name: torch.full((rows,), number, dtype=kinds[name], device=device)
            for name, number in numbers.items()
        }
        return set(ops.sample(logits, heat, seed=3, **given).tolist())

    everything, greatest = {0, 1, 2, 3}, {0}
    for k in (0, -1, -(1 << 31), 4, 5, (1 << 31) - 1):
        assert drawn(top_k=k) == everything, k
    assert drawn(top_k=1) == greatest and drawn(top_k=2) == {0, 1}
    for p in (1.0, 1.5, float("inf"), float("nan")):
        assert drawn(top_p=p) == everything, p
    for p in (0.0, -1.0, -float("inf"), 1e-30):
        assert drawn(top_p=p) == greatest, p
    assert drawn(top_p=0.65) == {0, 1}
    assert drawn(top_k=3, top_p=float("nan")) == {0, 1, 2}


def test_two_sources_of_draws_are_refused():
    logits, heat = equal(2, "cpu")
    generator = torch.Generator()
    for given in ({"generator": generator, "seed": 0}, {"seed": 0, "seeds": torch.arange(2)},
                  {"generator": generator, "seeds": torch.arange(2)}):
        with pytest.raises(tensorferry.InvalidArgument, match=" and ".join(given) + " are both"
                           if "seeds" in given and "seed" in given else "generator is given with"):
            kernels.sample(logits, heat, **given)


@on_each_device
def test_draws_follow_torchs_generator(device):
    logits, heat = equal(2, device)

    def drawn(seed, generator=None):
        (torch if generator is None else generator).manual_seed(seed)
        return [kernels.sample(logits, heat, generator=generator).tolist() for _ in range(4)]

    first = drawn(11)
    assert len({token for tokens in first for token in tokens}) >= 7
    assert drawn(11) == first
    assert drawn(12) != first
    generator = torch.Generator(device=device)
    assert drawn(11, generator) == drawn(11, generator) != drawn(12, generator)
    torch.manual_seed(11)
    kernels.sample(logits)  # greedy: nothing is drawn
    assert kernels.sample(logits, heat).tolist() == first[0]


def compilations(function, calls, backend="aot_eager"):
    """How often torch compiles the function for these calls."""
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for call in calls:
        compiled(*call)
    return counter.frame_count


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_does_not_compile_anew_for_other_seeds_and_steps(backend):
    logits, heat = torch.randn(3, 1000), torch.ones(3)

    def by_numbers(seed, step):
        return kernels.sample(logits, heat, seed=seed, step=step) + 0

    # One for the first numbers, one for all others.
    calls = [(100 + i, 7 + 3 * i) for i in range(12)]
    assert compilations(by_numbers, calls, backend) <= 2
    compiled = torch.compile(by_numbers, backend=backend)
    for call in calls:
        assert torch.equal(compiled(*call), by_numbers(*call))

    def by_tensors(seeds):
        return kernels.sample(logits, heat, seeds=seeds) + 0

    assert compilations(by_tensors, [(torch.tensor([i]),) for i in range(12)], backend) == 1

    def by_generator(logits):
        return kernels.sample(logits, heat) + 0

    assert compilations(by_generator, [(logits,)] * 12, backend) == 1


def test_compile_does_not_compile_anew_for_another_longest_sequence():
    q, k = torch.randn(40, 4, 64), torch.randn(40, 2, 64)

    def attend(starts, most):
        return kernels.attention_prefill(q, k, k.clone(), starts, starts, most, 0.125)

    def call(length):
        return torch.tensor([0, length, 40], dtype=torch.int32), max(length, 40 - length)

    assert compilations(attend, [call(length) for length in range(2, 15)]) <= 2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_call_draws_anew_and_follows_the_generator(backend):
    logits, heat = equal(2, "cpu")
    torch.compiler.reset()
    compiled = torch.compile(lambda: kernels.sample(logits, heat) + 0, backend=backend)

    def drawn(seed):
        torch.manual_seed(seed)
        return [compiled().tolist() for _ in range(3)]

    first = drawn(1)
    assert len({token for tokens in first for token in tokens}) >= 5
    assert drawn(1) == first


@on_a_gpu
def test_a_graph_draws_anew_at_each_replay_and_follows_the_generator():
    logits, heat = equal(2, "cuda")
    kernels.sample(logits, heat)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.sample(logits, heat)

    def drawn(seed):
        torch.cuda.manual_seed(seed)
        tokens = []
        for _ in range(4):
            graph.replay()
            tokens.append(out.tolist())
        return tokens

    first = drawn(1)
    assert len({token for tokens in first for token in tokens}) >= 7
    assert drawn(1) == first
    assert drawn(2) != first


@on_a_gpu
def test_a_graph_follows_a_generator_of_ones_own():
    logits, heat = equal(2, "cuda")
    generator = torch.Generator(device="cuda")
    kernels.sample(logits, heat, generator=generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = kernels.sample(logits, heat, generator=generator)
    tokens = set()
    for _ in range(4):
        graph.replay()
        tokens.update(out.tolist())
    assert len(tokens) >= 7
