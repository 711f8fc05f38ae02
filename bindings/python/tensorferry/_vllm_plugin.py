"""What vLLM calls in each of its processes, by the entry point vllm.general_plugins."""

import os


def register():
    """Makes backend="ferry" of weight transfers known to vLLM; another call does nothing.

    With TENSORFERRY_VLLM_OPS=1 vLLM's layers use our kernels, too: see tensorferry._vllm_ops.
    """
    from vllm.distributed.weight_transfer import factory

    for registry, name in (
        (factory.WeightTransferEngineFactory, "FerryWeightTransferEngine"),
        (factory.WeightTransferTrainerFactory, "FerryTrainerWeightTransferEngine"),
    ):
        try:
            registry.register_engine("ferry", "tensorferry.vllm", name)
        except ValueError as error:
            if "already registered" not in str(error):
                raise
    if os.environ.get("TENSORFERRY_VLLM_OPS", "") not in ("", "0"):
        from tensorferry import _vllm_ops

        _vllm_ops.register()
