"""tensorferry.nanovllm in an installed nano-vllm, or a checkout: TENSORFERRY_NANOVLLM=PATH."""

import json
import os
import pathlib
import subprocess
import sys
import weakref

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _core, kernels, layers, nanovllm, staging  # noqa: E402
from tensorferry.nanovllm import _engine, _missing, _run, bench  # noqa: E402

try:
    nanovllm.find()
except tensorferry.Unsupported:
    pytest.skip(
        "nano-vllm is not installed; install it, or set TENSORFERRY_NANOVLLM to a checkout", allow_module_level=True
    )

from nanovllm_engine import Reference, engine, greedy, prompts_of, write_model  # noqa: E402

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@pytest.fixture(scope="module")
def nano():
    """nano-vllm's modules."""
    _missing.provide_others()
    return nanovllm.load()


@pytest.fixture(autouse=True)
def disabled_afterwards():
    yield
    nanovllm.disable()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


# ---- layers -------------------------------------------------------------------------------------


@pytest.fixture
def both(nano):
    """Calls a function with nano-vllm's own layers, as written, and with ours: (theirs, ours)."""

    def call(function):
        with torch.inference_mode():
            nanovllm.disable()
            with torch.compiler.set_stance("force_eager"):
                theirs = function()
            nanovllm.enable()
            return theirs, function()

    return call


def close(pair, tolerance=1e-5):
    torch.testing.assert_close(pair[1], pair[0], rtol=tolerance, atol=tolerance)


# ---- the MLP in the place of Qwen3MLP -------------------------------------------------------------


def mlp_instead(nano, monkeypatch, more=0):
    """As docs/guides/nanovllm_kernels.md has it in Qwen3DecoderLayer."""
    monkeypatch.setattr(nano.qwen3, "Qwen3MLP", lambda hidden_size, intermediate_size, hidden_act:
                        layers.CustomGatedMLP(hidden_size, intermediate_size + more, hidden_act))


def test_the_custom_mlp_gets_its_weights_by_nano_vllms_own_loader(nano, model, monkeypatch):
    mlp_instead(nano, monkeypatch)
    prompts = prompts_of(5, 17)
    with engine(model, way="formulas") as llm:
        mlp = llm.model_runner.model.model.layers[0].mlp
        assert isinstance(mlp, layers.CustomGatedMLP)
        assert greedy(llm, prompts) == Reference(model).greedy(prompts)
        kept = Reference(model).weights
        for i, part in enumerate(("gate_proj", "up_proj")):
            right = kept[f"model.layers.0.mlp.{part}.weight"].float()
            assert torch.equal(mlp.gate_up_proj.weight.chunk(2)[i], right)


def test_a_checkpoint_of_other_sizes_is_named_by_nano_vllms_own_loader(nano, model, monkeypatch):
    mlp_instead(nano, monkeypatch, more=8)
    said = r"the checkpoint's \w+_proj.weight is \[(96, 64|64, 96)\]; this layer's is \[(104, 64|64, 104)\]"
    try:
        with pytest.raises(tensorferry.InvalidArgument, match=said), engine(model):
            pass
    finally:
        torch.distributed.destroy_process_group()  # the engine failed after it had made one


def test_rowwise_layers_are_nano_vllms(nano, both):
    x = torch.randn(5, 64)
    norm = nano.layernorm.RMSNorm(64)
    norm.weight.data.normal_()
    # Cloned, as nano-vllm's writes over float32 that it is given.
    close(both(lambda: norm(x.clone())))
    close(both(lambda: nano.activation.SiluAndMul()(x)))
    qkv = torch.randn(5, 8 * 64)
    close(both(lambda: norm(qkv.clone()[:, 64:192].unflatten(-1, (2, 64)))))


def test_the_norm_of_a_sum_is_nano_vllms(nano, both):
    """In bfloat16: in float32 nano-vllm's norm overwrites the sum that it returns."""
    x, residual = torch.randn(5, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    norm = nano.layernorm.RMSNorm(64).bfloat16()
    norm.weight.data.normal_()
    close(both(lambda: norm(x.clone(), residual.clone())), 2e-2)


def test_the_rotary_embedding_is_nano_vllms(nano, both):
    rope = nano.rotary_embedding.RotaryEmbedding(64, 64, 1000, 1e6)
    positions, q, k = torch.randint(1000, (7,)), torch.randn(7, 4, 64), torch.randn(7, 2, 64)
    close(both(lambda: rope(positions, q, k)))


def test_the_sampler_draws_as_nano_vllms_does(nano, both):
    logits = torch.randn(4, 1000)
    greedy_tokens = both(lambda: nano.sampler.Sampler()(logits.clone(), torch.full((4,), 1e-6)))
    assert torch.equal(*greedy_tokens)
    few = torch.tensor([[2.0, 1.0, 0.0, -1e9]]).expand(20000, 4)
    for drawn in both(lambda: nano.sampler.Sampler()(few.clone(), torch.full((20000,), 2.0))):
        shares = drawn.bincount(minlength=4) / 20000
        right = torch.softmax(few[0] / 2, -1)
        torch.testing.assert_close(shares, right, rtol=0, atol=0.02)


@pytest.mark.parametrize("use_custom_kernels", [True, False])
def test_draws_differ_from_step_to_step_and_follow_torchs_generator(nano, use_custom_kernels):
    logits, heat = torch.zeros(1, 100000), torch.ones(1)
    nanovllm.enable(use_custom_kernels)
    sampler = nano.sampler.Sampler()

    def drawn(seed):
        torch.manual_seed(seed)
        return [int(sampler(logits, heat)) for _ in range(5)]

    first = drawn(-5)
    assert len(set(first)) == 5
    assert drawn(-5) == first  # with one enable(), too
    assert drawn(6) != first


# ---- the engine on the CPU ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["kernels", "formulas"])
@pytest.mark.usefixtures("nano")
def test_the_engine_says_what_the_model_says(model, way):
    prompts = prompts_of(5, 1, 30)
    with engine(model, way) as llm:
        assert greedy(llm, prompts) == Reference(model).greedy(prompts)


@pytest.mark.usefixtures("nano")
def test_prompts_in_parts_and_known_beginnings_give_the_same(model, monkeypatch):
    (prompt,) = prompts_of(300)
    paged = []
    real = kernels.attention_prefill
    monkeypatch.setattr(
        kernels, "attention_prefill", lambda *a: paged.append(a[-1] is not None) or real(*a)
    )
    right = Reference(model).greedy([prompt, prompt[:280]], new=3)
    with engine(model, max_num_batched_tokens=128) as llm:
        assert greedy(llm, [prompt], new=3) == right[:1]
        assert any(paged)
        del paged[:]
        assert greedy(llm, [prompt[:280]], new=3) == right[1:]  # 256 of it are in the cache
        assert all(paged)


@pytest.mark.usefixtures("nano")
def test_sequences_that_give_way_come_back_to_the_same(model):
    """Two of 250 tokens grow beyond a block of 256 each, and there are three blocks."""
    prompts = prompts_of(250, 250)
    block_bytes = 2 * 2 * 256 * 2 * 64 * 4
    with engine(model, cache_bytes=3 * block_bytes) as llm:
        assert llm.model_runner.config.num_kvcache_blocks == 3
        assert greedy(llm, prompts, new=10) == Reference(model).greedy(prompts, new=10)


class ReplayedOnCpu:
    """A graph that runs what it would have captured."""

    replays = 0

    def __init__(self, nano, runner, tensors, outputs, size):
        self._arguments = (nano, runner, tensors, outputs, size)

    def replay(self):
        nano, runner, tensors, outputs, size = self._arguments
        ReplayedOnCpu.replays += 1
        names = ("slot_mapping", "context_lens", "block_tables")
        nano.context.set_context(False, **{name: tensors[name][:size] for name in names})
        with torch.inference_mode():
            outputs[:size] = runner.model(
                tensors["input_ids"][:size], tensors["positions"][:size]
            )


@pytest.mark.skipif(not _core.kernels.has_device_code, reason="a build without CUDA has no graphs")
@pytest.mark.usefixtures("nano")
def test_graphs_find_their_inputs_staged(model, monkeypatch):
    monkeypatch.setattr(_engine, "_captured", ReplayedOnCpu)
    ReplayedOnCpu.replays = 0
    prompts = prompts_of(5, 255, 9)
    with engine(model, enforce_eager=False) as llm:
        assert llm.model_runner.graph_bs == [1, 2, 4, 8]
        assert greedy(llm, prompts) == Reference(model).greedy(prompts)
        assert ReplayedOnCpu.replays == 5  # for 3 sequences, by the graph of 4
        nanovllm.enable(stage_decode=False)  # nano-vllm's own way to the same graphs
        assert greedy(llm, prompts_of(5)) == Reference(model).greedy(prompts_of(5))
        assert ReplayedOnCpu.replays == 10
        del llm.model_runner._tensorferry_inputs  # as if its graphs were of before enable()
        nanovllm.enable()
        assert greedy(llm, prompts_of(6)) == Reference(model).greedy(prompts_of(6))


@pytest.mark.usefixtures("nano")
def test_steps_without_staging_say_the_same(model):
    with engine(model, stage_decode=False) as llm:
        assert not hasattr(llm.model_runner, "_tensorferry_inputs")
        assert greedy(llm, prompts_of(20, 3)) == Reference(model).greedy(prompts_of(20, 3))
        assert not hasattr(llm.model_runner, "_tensorferry_inputs")


@pytest.mark.usefixtures("nano")
def test_sequences_beyond_max_model_len_are_nano_vllms(model, monkeypatch):
    """Without graphs, whose tables have no more room: two blocks of 256 are staged, and no more."""
    (prompt,) = prompts_of(508)
    staged = []
    real = staging.DecodeInputs.stage
    monkeypatch.setattr(staging.DecodeInputs, "stage", lambda *a: staged.append(1) or real(*a))
    with engine(model, max_model_len=256) as llm:
        assert greedy(llm, [prompt], new=8) == Reference(model).greedy([prompt], new=8)
    assert len(staged) == 4


def test_an_engine_takes_no_table_of_another_one(nano, model):
    tables = []
    for _ in range(2):
        with engine(model) as llm:
            tables.append(llm.model_runner.model.model.layers[0].self_attn.rotary_emb)
    assert tables[0] is not tables[1]


@pytest.mark.usefixtures("nano")
def test_what_an_engine_held_is_freed_when_it_ends(model):
    with engine(model) as llm:
        greedy(llm, prompts_of(5))
        held = weakref.ref(llm.model_runner)
    assert held() is None


@pytest.mark.usefixtures("nano")
def test_more_processes_are_refused(model):
    with pytest.raises(tensorferry.Unsupported, match="tensor_parallel_size is 2"):
        with engine(model, tensor_parallel_size=2):
            pass


# ---- patching -----------------------------------------------------------------------------------


def patched(nano):
    return {
        "silu": nano.activation.SiluAndMul.forward,
        "norm": nano.layernorm.RMSNorm.forward,
        "rope": nano.rotary_embedding.RotaryEmbedding.forward,
        "store": nano.attention.store_kvcache,
        "attention": nano.attention.Attention.forward,
        "block": nano.qwen3.Qwen3Attention.forward,
        "sampler": nano.sampler.Sampler.forward,
        "config": nano.config.Config.__post_init__,
        "decode": nano.model_runner.ModelRunner.prepare_decode,
        "sample": nano.model_runner.ModelRunner.prepare_sample,
        "run": nano.model_runner.ModelRunner.run_model,
        "capture": nano.model_runner.ModelRunner.capture_cudagraph,
    }


def test_disabling_undoes_all_however_often_it_was_enabled(nano):
    before = patched(nano)
    nanovllm.enable()
    assert all(now is not before[name] for name, now in patched(nano).items())
    nanovllm.enable(use_custom_kernels=False)
    nanovllm.enable()
    nanovllm.disable()
    assert patched(nano) == before
    nanovllm.disable()
    assert patched(nano) == before


def test_the_flag_really_switches(nano, monkeypatch):
    called = []
    real = kernels.silu_and_mul
    monkeypatch.setattr(kernels, "silu_and_mul", lambda x: called.append(1) or real(x))
    layer = nano.activation.SiluAndMul()
    nanovllm.enable()
    ours = layer(torch.ones(2, 8))
    assert called == [1]
    nanovllm.enable(use_custom_kernels=False)
    torch.testing.assert_close(layer(torch.ones(2, 8)), ours)
    assert called == [1]


@pytest.mark.skipif("flash_attn" in sys.modules, reason="flash-attn is installed")
def test_nobody_else_finds_the_stand_in_for_flash_attn(nano):
    assert nano.attention.flash_attn_varlen_func.__module__ in (
        "tensorferry.nanovllm._missing", "flash_attn.flash_attn_interface")
    assert "flash_attn" not in sys.modules


# ---- the benchmark ------------------------------------------------------------------------------

SMALL = ("--layers 2 --hidden 64 --intermediate 96 --heads 4 --kv-heads 2 --head-size 64"
         " --vocab 500 --sequences 3 --prompt 20 --new 5").split()


def benched(*arguments):
    command = [sys.executable, "-m", "tensorferry.nanovllm.bench", *SMALL, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_the_benchmark_says_what_each_way_reaches(tmp_path):
    ended = benched("--device", "cpu", "--out", tmp_path, "--json", tmp_path / "all.json")
    assert ended.returncode == 0, ended.stderr
    results = json.loads((tmp_path / "all.json").read_text())
    assert set(results) == {"kernels", "formulas"}
    for way, result in results.items():
        assert f"\n{way}" in ended.stdout
        assert result["decode_tokens_per_s"] > 0
        assert [len(tokens) for tokens in result["tokens"]] == [5, 5, 5]
        assert set(result["inputs_us_by_batch"]) == {"1"}  # there is room for 3
        assert "errors" not in result
    assert "inputs us by sequences: 1: " in ended.stdout
    assert set(results["kernels"]["staging_us"]) == {"1", "2", "4", "8", "16", "32"}
    assert "silu_and_mul" in (tmp_path / "profile_report.txt").read_text()
    assert json.loads((tmp_path / "profile_trace.json").read_text())["traceEvents"]


def test_the_guides_benchmark_is_the_same_command(tmp_path):
    program = pathlib.Path(__file__).parents[2] / "examples" / "bench.py"
    ended = subprocess.run([sys.executable, program, *SMALL, "--device", "cpu", "--ways", "kernels"], cwd=tmp_path,
                           capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert "\nkernels" in ended.stdout
    assert (tmp_path / "profile_trace.json").exists() and (tmp_path / "profile_report.txt").exists()


def test_the_benchmark_checks_tokens_of_prompts_in_parts(tmp_path):
    ended = benched("--device", "cpu", "--check", "--json", tmp_path / "all.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed: " in ended.stdout
    assert " of 15 tokens are the reference's own" in ended.stdout
    results = json.loads((tmp_path / "all.json").read_text())
    assert results["kernels"]["paged_prefills"] == results["formulas"]["paged_prefills"] == 1


@pytest.mark.usefixtures("nano")
def test_prompts_to_be_computed_in_parts_begin_alike():
    settings = {"seed": 0, "vocab": 500, "prompt": 20, "sequences": 3, "longest": 0}
    assert max(map(len, _run._prompts(settings))) <= 20
    first, second, third = _run._prompts(settings | {"longest": 320})
    assert len(first) == len(second) == 320
    assert first[:256] == second[:256]
    assert first[256:] != second[256:]
    assert len(third) <= 20


@pytest.mark.skipif("flash_attn" in sys.modules, reason="flash-attn is installed")
def test_ways_whose_kernels_would_not_run_are_refused(nano, monkeypatch):
    monkeypatch.setattr(_core.kernels, "has_device_code", False)
    for way in ("kernels", "own"):
        with pytest.raises(tensorferry.Unsupported, match=f"{way} needs .* has none for GPUs"):
            _run.check_kernels(nano, way, "cuda")
    _run.check_kernels(nano, "kernels", "cpu")
    monkeypatch.setattr(kernels, "KERNELS_AVAILABLE", False)
    for way in ("kernels", "own"):
        with pytest.raises(tensorferry.Unsupported, match="TENSORFERRY_DISABLE_KERNELS"):
            _run.check_kernels(nano, way, "cpu")
    _run.check_kernels(nano, "formulas", "cuda")


def test_what_fails_after_the_run_is_told_and_loses_nothing():
    result = {"decode_tokens_per_s": 1.0}
    _run._try(result, "profile", lambda: 1 / 0)
    assert result == {"decode_tokens_per_s": 1.0, "profile": None,
                      "errors": {"profile": "ZeroDivisionError: division by zero"}}


@pytest.mark.usefixtures("nano")
def test_tokens_that_are_not_the_models_are_found(model):
    prompts = prompts_of(10, 200)
    with engine(model, "formulas", max_num_batched_tokens=128) as llm:
        right = greedy(llm, prompts)
        wrong = [list(right[0]), list(right[1])]
        wrong[1][2] = (wrong[1][2] + 1) % 500
        gaps = {}
        for name, tokens in (("right", right), ("wrong", wrong)):
            followed = _run.Followed(llm.model_runner, tokens)
            assert greedy(llm, [[7] + prompt for prompt in prompts]) == tokens
            gaps[name] = followed.gaps
    assert len(gaps["right"]) == len(gaps["wrong"]) == 12
    assert not bench.verdict(gaps["wrong"], 1e-4, 12)[0]


# ---- with a GPU ---------------------------------------------------------------------------------


@on_a_gpu
@pytest.mark.usefixtures("nano")
@pytest.mark.parametrize(("way", "eager"), [("kernels", True), ("kernels", False),
                                            ("formulas", True)])
def test_the_engine_on_a_gpu_says_what_the_model_says(tmp_path, way, eager):
    """Each token's logit is the largest there is in float64, or nearly."""
    folder = write_model(tmp_path, torch.bfloat16)
    prompts, reference = prompts_of(5, 1, 300), Reference(folder)
    with engine(folder, way, cpu=False, enforce_eager=eager) as llm:
        assert llm.model_runner.enforce_eager == eager
        for prompt, answer in zip(prompts, greedy(llm, prompts)):
            for step, token in enumerate(answer):
                logits = reference.logits(prompt + answer[:step])
                gap = (logits.max() - logits[token]) / logits.abs().max()
                assert gap <= bench.TOLERANCE["bfloat16"]


@on_a_gpu
def test_the_benchmark_checks_tokens_on_a_gpu():
    ended = benched("--check", "--memory", 0.3)
    assert ended.returncode == 0, ended.stdout + ended.stderr


DISABLED = """
import torch
from tensorferry import kernels, nanovllm
from tensorferry.nanovllm import _missing
_missing.provide_others()
nano = nanovllm.load()
nanovllm.enable()
assert not kernels.KERNELS_AVAILABLE
x = torch.ones(2, 2, 2, 2, 2)  # which our kernel does not take
assert nano.activation.SiluAndMul()(x).shape == (2, 2, 2, 2, 1)
"""


def test_the_environment_switches_kernels_off():
    subprocess.run([sys.executable, "-c", DISABLED], check=True, timeout=120,
                   env=os.environ | {"TENSORFERRY_DISABLE_KERNELS": "1"})
