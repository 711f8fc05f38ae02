"""Tests of tensorferry.nanovllm without nano-vllm: its errors, and its substitutes for missing modules."""

import os
import subprocess
import sys

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import _formulas, nanovllm  # noqa: E402
from tensorferry.nanovllm import _missing, _model, bench  # noqa: E402


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a package called nanovllm out of {path: text}, to be found by the variable."""

    def make(files):
        for path, text in ({"__init__": ""} | files).items():
            file = tmp_path / "nanovllm" / f"{path}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        monkeypatch.setenv("TENSORFERRY_NANOVLLM", str(tmp_path))
        monkeypatch.setattr(sys, "path", list(sys.path))

    kept = {name: sys.modules.pop(name) for name in list(sys.modules)
            if name.partition(".")[0] == "nanovllm"}
    yield make
    for name in list(sys.modules):
        if name.partition(".")[0] == "nanovllm":
            del sys.modules[name]
    sys.modules.update(kept)


def layer(name, forward, *attributes):
    made = "".join(f"    self.{attribute} = 1\n" for attribute in attributes)
    return (f"class {name}:\n  def __init__(self):\n    self.made = 1\n{made}"
            f"  def forward(self, {forward}): return 'theirs'\n")


# All that the plug-in replaces and uses, and the least of each.
OURS = {
    "config": "class Config:\n  tensor_parallel_size = 1\n  enforce_eager = False\n"
              "  max_model_len: int\n  max_num_seqs: int\n  hf_config: object\n"
              "  def __init__(self, **named):\n    self.__dict__.update(named)\n"
              "    self.__post_init__()\n  def __post_init__(self): self.checked = True",
    "engine/sequence": "class Sequence:\n  def __init__(self):\n    self.last_token = 1\n"
                       "    self.num_tokens = 1\n    self.block_table = []\n"
                       "    self.temperature = 1.0\n",
    "engine/model_runner": "from nanovllm.engine.sequence import Sequence\nclass ModelRunner:\n"
                           "  def __init__(self):\n    self.config = self.block_size = 1\n"
                           "    self.model = self.enforce_eager = 1\n"
                           "  def prepare_decode(self, seqs): pass\n"
                           "  def prepare_sample(self, seqs): pass\n"
                           "  def run_model(self, input_ids, positions, is_prefill): pass\n"
                           "  def capture_cudagraph(self):\n    self.graphs = self.graph_bs = 1\n"
                           "    self.graph_pool = self.graph_vars = 1\n",
    "layers/activation": layer("SiluAndMul", "x"),
    "layers/attention": "from flash_attn import flash_attn_varlen_func\n"
                        "def store_kvcache(key, value, k_cache, v_cache, slot_mapping): pass\n"
                        + layer("Attention", "q, k, v", "k_cache", "v_cache", "scale"),
    "layers/layernorm": layer("RMSNorm", "x, residual=None", "weight", "eps"),
    "layers/rotary_embedding": layer(
        "RotaryEmbedding", "positions, query, key", "cos_sin_cache"),
    "layers/sampler": layer("Sampler", "logits, temperatures"),
    "models/qwen3": layer(
        "Qwen3Attention", "positions, hidden_states", "qkv_bias", "qkv_proj", "num_heads",
        "num_kv_heads", "head_dim", "kv_size", "q_norm", "k_norm", "rotary_emb", "attn", "o_proj"),
    "utils/context": "class Context:\n  is_prefill = False\n  block_tables = None\n"
                     "  context_lens = cu_seqlens_q = cu_seqlens_k = slot_mapping = None\n"
                     "  max_seqlen_q = 0\n"
                     "def get_context(): return Context()\n"
                     "def set_context(is_prefill, slot_mapping=None, context_lens=None,"
                     " block_tables=None): pass\n"
                     "def reset_context(): pass\n",
}


def test_a_package_of_that_shape_is_patched_and_restored(package):
    package(OURS)
    nanovllm.enable()
    from nanovllm.config import Config
    from nanovllm.layers.activation import SiluAndMul

    x = torch.randn(3, 8)
    torch.testing.assert_close(SiluAndMul().forward(x), _formulas.silu_and_mul(x))
    assert Config().checked
    with pytest.raises(tensorferry.Unsupported, match="tensor_parallel_size is 4; it works in one"):
        Config(tensor_parallel_size=4)
    nanovllm.enable(use_custom_kernels=False)
    assert Config().enforce_eager  # the formulas cannot be captured
    nanovllm.disable()
    assert SiluAndMul().forward(x) == "theirs"
    assert not Config(tensor_parallel_size=4).enforce_eager


def test_another_nano_vllm_is_left_as_it_was(package):
    package(OURS | {"layers/sampler": "class Sampler: pass"})
    with pytest.raises(tensorferry.Unsupported, match="no nanovllm.layers.sampler.Sampler.forward"):
        nanovllm.enable()
    from nanovllm.layers.activation import SiluAndMul

    assert SiluAndMul().forward(None) == "theirs"


def test_a_second_enable_that_is_refused_leaves_the_first_in_force(package, monkeypatch):
    package(OURS)
    nanovllm.enable(use_custom_kernels=False)
    from nanovllm.config import Config
    from nanovllm.layers.activation import SiluAndMul
    from nanovllm.utils import context

    ours = SiluAndMul.forward
    with monkeypatch.context() as broken:
        broken.delattr(context, "reset_context")
        with pytest.raises(tensorferry.Unsupported, match="no .*context.reset_context"):
            nanovllm.enable()
    assert SiluAndMul.forward is ours
    assert Config().enforce_eager  # as with the formulas, which the first call has asked for
    nanovllm.disable()
    assert SiluAndMul().forward(None) == "theirs"


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("engine/model_runner", "prepare_decode(self, seqs)", "prepare_decode(self, seqs, more)",
         r"ModelRunner.prepare_decode takes \(self, seqs, more\), and what would replace it takes"),
        ("engine/model_runner", "self, input_ids, positions, is_prefill", "self, *, batch",
         r"ModelRunner.run_model takes \(self, \*, batch\)"),
        ("layers/layernorm", "x, residual=None", "x", None),
        ("layers/layernorm", "self.eps", "self.variance_epsilon", "RMSNorm has no eps"),
        ("layers/attention", "self.k_cache", "self.kv_cache", "Attention has no k_cache"),
        ("layers/rotary_embedding", "self.cos_sin_cache", "self.cos",
         "RotaryEmbedding has no cos_sin_cache"),
        ("models/qwen3", "self.q_norm", "self.query_norm", "Qwen3Attention has no q_norm"),
        ("engine/sequence", "self.block_table ", "self.blocks ", "Sequence has no block_table"),
        ("engine/model_runner", "self.graph_bs", "self.sizes", "ModelRunner has no graph_bs"),
        ("config", "max_num_seqs", "batch", "Config has no max_num_seqs"),
        ("utils/context", "cu_seqlens_k = ", "", r"get_context\(\) returns has no cu_seqlens_k"),
        ("utils/context", "context_lens=None", "lengths=None", "set_context cannot be called as"),
        ("utils/context", "def reset_context", "def reset", "there is no .*context.reset_context"),
    ],
)
def test_what_a_nano_vllm_lacks_is_said_before_anything_is_replaced(
    package, file, before, after, said
):
    assert before in OURS[file]
    package(OURS | {file: OURS[file].replace(before, after)})
    if said is None:  # less than ours takes
        nanovllm.enable()
        nanovllm.disable()
        return
    with pytest.raises(tensorferry.Unsupported, match=f"does not fit the plug-in: .*{said}"):
        nanovllm.enable()
    from nanovllm.layers.activation import SiluAndMul

    assert SiluAndMul().forward(None) == "theirs"


def test_all_that_is_lacking_is_said_at_once(package):
    package(OURS | {"layers/sampler": "class Other: pass",
                    "layers/layernorm": layer("RMSNorm", "x, residual", "weight")})
    with pytest.raises(tensorferry.Unsupported, match="Sampler.forward; .*RMSNorm has no eps"):
        nanovllm.enable()


def test_what_only_staging_uses_may_lack_without_it(package):
    package(OURS | {"engine/sequence": "class Sequence: pass"})
    with pytest.raises(tensorferry.Unsupported, match="Sequence has no last_token"):
        nanovllm.enable()
    nanovllm.enable(stage_decode=False)
    nanovllm.disable()


def test_modules_that_are_missing_are_named(package):
    package(OURS | {"config": "import no_such_module"})
    with pytest.raises(tensorferry.Unsupported, match="nano-vllm needs no_such_module; install it: "
                                                      "python -m pip install no_such_module"):
        nanovllm.enable()


def test_an_older_nano_vllm_is_named(package):
    package({})
    with pytest.raises(tensorferry.Unsupported, match="this nano-vllm has no nanovllm.config"):
        nanovllm.enable()


def test_a_checkout_that_is_none_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORFERRY_NANOVLLM", str(tmp_path))
    with pytest.raises(tensorferry.InvalidArgument, match="which has no nanovllm/__init__.py"):
        nanovllm.enable()


ALONE = """
import importlib.util
import sys
import tensorferry.nanovllm
if len(sys.argv) > 1:
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name: None if name == sys.argv[1] else real(name)
tensorferry.nanovllm.enable()
"""


@pytest.mark.parametrize(
    ("hidden", "said"),
    [
        ("nanovllm", "nano-vllm is not installed; install it: python -m pip install --no-deps g"),
        ("nanovllm", "or name a checkout of it by TENSORFERRY_NANOVLLM=PATH"),
        ("torch", "needs torch; install it: python -m pip install torch"),
    ],
)
def test_it_is_said_how_to_get_what_is_missing(hidden, said):
    environment = {k: v for k, v in os.environ.items() if k != "TENSORFERRY_NANOVLLM"}
    ended = subprocess.run([sys.executable, "-c", ALONE, hidden], capture_output=True, text=True,
                           timeout=120, env=environment)
    assert ended.returncode != 0
    assert said in ended.stderr.splitlines()[-1]


# ---- in the place of what is not installed ------------------------------------------------------


def test_flash_attns_functions_are_our_attention():
    q, k, v = torch.randn(5, 4, 64), torch.randn(5, 2, 64), torch.randn(5, 2, 64)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    torch.testing.assert_close(
        _missing.flash_attn_varlen_func(
            q, k, v, max_seqlen_q=3, cu_seqlens_q=starts, max_seqlen_k=3, cu_seqlens_k=starts,
            softmax_scale=0.1, causal=True, block_table=None),
        _formulas.attention_prefill(q, k, v, starts, starts, 3, 0.1),
    )
    k_cache, v_cache = torch.randn(4, 16, 2, 64), torch.randn(4, 16, 2, 64)
    tables = torch.tensor([[2, 0], [3, -1]], dtype=torch.int32)
    lengths = torch.tensor([20, 3], dtype=torch.int32)
    out = _missing.flash_attn_with_kvcache(
        q[:2].unsqueeze(1), k_cache, v_cache, cache_seqlens=lengths, block_table=tables,
        softmax_scale=0.1, causal=True)
    assert out.shape == (2, 1, 4, 64)
    right = _formulas.attention_decode(q[:2], k_cache, v_cache, tables, lengths, 0.1)
    torch.testing.assert_close(out.squeeze(1), right)


def test_flash_attn_is_there_only_while_nano_vllm_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # as if it were not installed
    with _missing.flash_attn():
        from flash_attn import flash_attn_varlen_func

        assert flash_attn_varlen_func is _missing.flash_attn_varlen_func
    assert sys.modules.get("flash_attn") is None


SHAPE = dict(layers=1, hidden=8, intermediate=6, heads=2, kv_heads=1, head_size=4, vocab=11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_written_and_read(tmp_path, dtype):
    _model.write(tmp_path, SHAPE, dtype, seed=5)
    with _missing._Weights(tmp_path / "model.safetensors", "pt", "cpu") as weights:
        tensors = {name: weights.get_tensor(name) for name in weights.keys()}
    assert tensors["model.layers.0.self_attn.k_proj.weight"].shape == (4, 8)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype}
    again = tmp_path / "again"
    again.mkdir()
    _model.write(again, SHAPE, dtype, seed=5)
    files = [folder / "model.safetensors" for folder in (tmp_path, again)]
    assert files[0].read_bytes() == files[1].read_bytes()
    config = _missing._Config.from_pretrained(tmp_path)
    assert (config.dtype, config.head_dim, config.hidden_size) == (dtype, 4, 8)
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for name, tensor in safetensors.load_file(files[0]).items():
        assert torch.equal(tensor, tensors[name])


def test_the_hash_tells_blocks_apart():
    def of(*parts):
        made = _missing._Hash()
        for part in parts:
            made.update(part)
        return made.intdigest()

    assert of(b"a", b"b") == of(b"ab") != of(b"ba")
    assert 0 <= of(b"a") < 1 << 64


# ---- the benchmark ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--ways kernels,plain", "--ways has 'plain'; it can have kernels, own, formulas"),
        ("--device cpu --ways own", "nano-vllm's own layers need a GPU"),
        ("--new 1", "--new 2 or more"),
        ("--dtype float32", "--dtype float32 is for the CPU"),
        ("--dtype float64", "invalid choice: 'float64'"),
    ],
)
def test_options_that_cannot_be_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments.split())
    assert message in capsys.readouterr().err


def test_the_benchmark_says_that_nano_vllm_is_missing(monkeypatch):
    monkeypatch.setenv("TENSORFERRY_NANOVLLM", "/no/such/place")
    with pytest.raises(SystemExit, match="bench: TENSORFERRY_NANOVLLM is '/no/such/place'"):
        bench.main(["--device", "cpu"])


def test_the_benchmark_says_that_there_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr("tensorferry.nanovllm.find", lambda: tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch finds no GPU; --device cpu"):
        bench.main([])


def test_the_verdict_is_for_the_first_that_differs_and_the_worst():
    assert bench.verdict([(0, 0, 0.0), (0, 1, 0.0)], 0.1, 2) == (
        True, "2 of 2 tokens are the reference's own")
    own = [(2, step, 0.0) for step in range(18)]
    well, said = bench.verdict([*own, (1, 4, 0.05), (0, 2, 0.01)], 0.1, 20)
    assert well
    assert "18 of 20" in said
    assert "the first other one is token 4 of sequence 1, 0.05 of the largest logit below" in said
    well, said = bench.verdict([*own, (0, 0, 0.05), (1, 3, 0.2)], 0.1, 20)
    assert not well
    assert "1 are WRONG, the first token 3 of sequence 1: 0.2" in said
    assert not bench.verdict([*own, (0, 0, float("nan"))], 0.1, 19)[0]
    assert not bench.verdict([], 0.1, 0)[0]


def test_too_many_ties_and_tokens_that_are_not_judged_are_no_pass():
    own = [(0, step, 0.0) for step in range(8)]
    well, said = bench.verdict([*own, (1, 0, 0.01)], 0.1, 9)
    assert not well
    assert said.endswith("; that is less than 90%")
    well, said = bench.verdict(own, 0.1, 9)
    assert not well
    assert said.endswith("; there should be 9 tokens")


def test_engines_have_room_for_a_graph_of_nano_vllms():
    assert [bench._room(n) for n in (1, 3, 8, 9, 16, 20, 64)] == [1, 3, 8, 16, 16, 32, 64]
