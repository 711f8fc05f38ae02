"""nano-vllm's steps of decoding: inputs staged into the buffers of its CUDA graphs."""

import bisect

import torch

from tensorferry import errors, staging
from tensorferry.nanovllm import _needs

# nano-vllm's: beyond, steps run without graphs.
_MOST_CAPTURED = 512


def limits(nano, capturable):
    """State that every engine has while the plug-in is enabled."""
    before = _needs.find(nano.config, "Config.__post_init__")

    def check(self):
        before(self)
        if self.tensor_parallel_size > 1:
            raise errors.Unsupported(
                f"tensorferry.nanovllm: tensor_parallel_size is {self.tensor_parallel_size}; it "
                "works in one process: make it 1, or disable() first"
            )
        self.enforce_eager = self.enforce_eager or not capturable

    yield nano.config, "Config.__post_init__", check


def staged(nano):
    return [*_inputs(nano), *_graphs(nano)]


def _inputs_of(runner):
    """A runner's DecodeInputs: made before its graphs are captured over them."""
    inputs = getattr(runner, "_tensorferry_inputs", None)
    if inputs is None:
        config = runner.config
        # One block more: a sequence as long as allowed still grows by the token that ends it.
        blocks = -(-config.max_model_len // runner.block_size) + 1
        device = next(runner.model.parameters()).device
        inputs = staging.DecodeInputs(config.max_num_seqs, blocks, runner.block_size, device)
        runner._tensorferry_inputs = inputs
        runner._tensorferry_staged = (None, None)
    return inputs


def _is_nano_vllms(runner):
    """Whether its graphs are captured over other buffers than ours: before enable()."""
    buffers = getattr(runner, "graph_vars", None)
    return buffers is not None and buffers["input_ids"] is not (
        _inputs_of(runner).tensors["input_ids"]
    )


def _graph_size(runner, count):
    """The size of the graph that takes so many sequences; 0 where none does."""
    if not hasattr(runner, "graph_vars"):
        return 0
    at = bisect.bisect_left(runner.graph_bs, count)
    return runner.graph_bs[at] if at < len(runner.graph_bs) else 0


def _inputs(nano):
    decode_before = _needs.find(nano.model_runner, "ModelRunner.prepare_decode")
    sample_before = _needs.find(nano.model_runner, "ModelRunner.prepare_sample")

    def prepare_decode(self, seqs):
        if _is_nano_vllms(self):
            return decode_before(self, seqs)
        inputs, size = _inputs_of(self), _graph_size(self, len(seqs))
        # nano-vllm lets sequences grow beyond max_model_len, and only graphs bound their tables.
        if size == 0 and max(len(seq.block_table) for seq in seqs) > inputs.max_blocks:
            self._tensorferry_staged = (None, None)
            return decode_before(self, seqs)
        batch = inputs.stage(
            [seq.last_token for seq in seqs],
            [seq.num_tokens for seq in seqs],
            [seq.block_table for seq in seqs],
            [seq.temperature for seq in seqs],
            size,
        )
        self._tensorferry_staged = (seqs, batch)
        nano.context.set_context(
            False,
            slot_mapping=batch.slot_mapping,
            context_lens=batch.context_lens,
            block_tables=batch.block_tables,
        )
        return batch.input_ids, batch.positions

    def prepare_sample(self, seqs):
        staged, batch = getattr(self, "_tensorferry_staged", (None, None))
        return batch.temperatures if staged is seqs else sample_before(self, seqs)

    yield nano.model_runner, "ModelRunner.prepare_decode", prepare_decode
    yield nano.model_runner, "ModelRunner.prepare_sample", prepare_sample


def _graphs(nano):
    run_before = _needs.find(nano.model_runner, "ModelRunner.run_model")

    @torch.inference_mode()
    def run_model(self, input_ids, positions, is_prefill):
        count = input_ids.shape[0]
        eager = is_prefill or self.enforce_eager or _is_nano_vllms(self)
        size = 0 if eager else _graph_size(self, count)
        if size == 0:
            return run_before(self, input_ids, positions, is_prefill)
        self.graphs[size].replay()
        return self.model.compute_logits(self.graph_vars["outputs"][:count])

    @torch.inference_mode()
    def capture_cudagraph(self):
        tensors = _inputs_of(self).tensors
        tensors["slot_mapping"].fill_(-1)
        weight = next(self.model.parameters())
        most = min(self.config.max_num_seqs, _MOST_CAPTURED)
        outputs = weight.new_zeros(most, self.config.hf_config.hidden_size)
        self.graph_bs = sorted({n for n in (1, 2, 4, 8, *range(16, most, 16), most) if n <= most})
        self.graphs, self.graph_pool = {}, None
        for size in reversed(self.graph_bs):
            self.graphs[size] = _captured(nano, self, tensors, outputs, size)
        self.graph_vars = dict(tensors, outputs=outputs)

    yield nano.model_runner, "ModelRunner.run_model", run_model
    yield nano.model_runner, "ModelRunner.capture_cudagraph", capture_cudagraph


def _captured(nano, runner, tensors, outputs, size):
    inputs = {name: tensor[:size] for name, tensor in tensors.items()}
    names = ("slot_mapping", "context_lens", "block_tables")
    nano.context.set_context(False, **{name: inputs[name] for name in names})

    def step():
        outputs[:size] = runner.model(inputs["input_ids"], inputs["positions"])

    step()  # what is set up at a first call cannot be while a graph is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, runner.graph_pool):
        step()
    torch.cuda.synchronize()
    runner.graph_pool = graph.pool()
    nano.context.reset_context()
    return graph
