"""What vLLM calls in each of its processes, by the entry point vllm.general_plugins."""

import logging
import os

from tensorferry import errors

_log = logging.getLogger(__name__)


def register():
    """Makes backend="ferry" of weight transfers known to vLLM; another call does nothing.

    With TENSORFERRY_VLLM_OPS=1 vLLM's layers use our kernels, too: see tensorferry._vllm_ops. What this
    vLLM has no place for is logged and left out: vLLM does not catch what a plug-in raises, and the
    process may not need us.
    """
    try:
        register_engines()
    except (ImportError, AttributeError) as error:
        _log.warning(
            "tensorferry: the weight transfer backend 'ferry' is not registered, as this vLLM lacks "
            "what it needs (%s); vLLM 0.33.0 has it", error,
        )
    try:
        register_ops()
    except (ImportError, AttributeError, errors.Unsupported) as error:
        _log.warning(
            "tensorferry: vLLM keeps its own ops in spite of TENSORFERRY_VLLM_OPS (%s); vLLM 0.33.0 has "
            "what ours need", error,
        )


def register_engines():
    """Raises ImportError or AttributeError where vLLM has no weight transfers from trainers."""
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


def register_ops():
    """Only with TENSORFERRY_VLLM_OPS=1; raises as register_engines(), where vLLM's layers are others."""
    if os.environ.get("TENSORFERRY_VLLM_OPS", "") not in ("", "0"):
        from tensorferry import _vllm_ops

        _vllm_ops.register()
