"""What the plug-in replaces in nano-vllm and what it uses of it: looked for before anything changes.

By the attributes and signatures themselves, not by a version: forks keep versions and change code.
"""

import inspect

from tensorferry import errors

# Attributes read from objects, by (module, class): looked up in the class's code, because objects
# are made much later.
_LAYERS = {
    ("layernorm", "RMSNorm"): ("weight", "eps"),
    ("rotary_embedding", "RotaryEmbedding"): ("cos_sin_cache",),
    ("attention", "Attention"): ("k_cache", "v_cache", "scale"),
    ("qwen3", "Qwen3Attention"): (
        "qkv_bias", "qkv_proj", "num_heads", "num_kv_heads", "head_dim", "kv_size", "q_norm",
        "k_norm", "rotary_emb", "attn", "o_proj",
    ),
    ("config", "Config"): ("tensor_parallel_size", "enforce_eager"),
}
_STAGED = {
    ("config", "Config"): ("max_model_len", "max_num_seqs", "hf_config"),
    ("model_runner", "ModelRunner"): (
        "config", "block_size", "model", "enforce_eager", "graphs", "graph_bs", "graph_pool",
        "graph_vars",
    ),
    ("model_runner", "Sequence"): ("last_token", "num_tokens", "block_table", "temperature"),
}
_CONTEXT = (
    "is_prefill", "block_tables", "context_lens", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q",
    "slot_mapping",
)


def check(nano, replacements, staged):
    """Raises Unsupported, with all that does not fit, unless everything is there."""
    wrong = [*_calls(nano, staged)]
    for module, path, function in replacements:
        wrong += _replaced(module, path, function)
    needed = [*_LAYERS.items(), *(_STAGED.items() if staged else ())]
    for (module, name), attributes in needed:
        wrong += _attributes(getattr(nano, module), name, attributes)
    if wrong:
        raise errors.Unsupported(
            f"this nano-vllm does not fit the plug-in: {'; '.join(dict.fromkeys(wrong))}; install "
            "nano-vllm 0.2, which does, or leave enable() out"
        )


def find(module, path):
    """What the module has by this path, or None."""
    found = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _place(module, path):
    return f"{module.__name__}.{path}"


def _replaced(module, path, ours):
    theirs = find(module, path)
    if theirs is None:
        yield f"there is no {_place(module, path)}"
        return
    try:
        taken = inspect.signature(theirs)
    except (TypeError, ValueError):
        yield f"{_place(module, path)} is not a function whose arguments can be seen"
        return
    can = inspect.signature(ours)
    count = len(taken.parameters)
    kinds = {parameter.kind for parameter in taken.parameters.values()}
    by_place = kinds <= {
        inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    needed = sum(
        parameter.default is inspect.Parameter.empty for parameter in taken.parameters.values()
    )
    if not (by_place and _takes(can, count) and _takes(can, needed)):
        yield f"{_place(module, path)} takes {taken}, and what would replace it takes {can}"


def _takes(signature, count):
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _calls(nano, staged):
    get_context = find(nano.context, "get_context")
    if get_context is None:
        yield f"there is no {_place(nano.context, 'get_context')}"
        return
    context = get_context()
    for name in _CONTEXT:
        if not hasattr(context, name):
            yield f"what {_place(nano.context, 'get_context')}() returns has no {name}"
    if not staged:
        return
    for name in ("set_context", "reset_context"):
        if find(nano.context, name) is None:
            yield f"there is no {_place(nano.context, name)}"
            return
    used = ("slot_mapping", "context_lens", "block_tables")
    try:
        inspect.signature(nano.context.set_context).bind(False, **dict.fromkeys(used))
    except TypeError as error:
        yield f"{_place(nano.context, 'set_context')} cannot be called as it has to be: {error}"


def _attributes(module, name, attributes):
    owner = find(module, name)
    if owner is None:
        yield f"there is no {_place(module, name)}"
        return
    known = _names_in(owner)
    for attribute in attributes:
        if attribute not in known:
            yield f"{_place(module, name)} has no {attribute}"


def _names_in(owner):
    """What the class has, and what its code names: attributes of self, buffers by their strings."""
    names = set(dir(owner))
    for one in owner.__mro__:
        names.update(getattr(one, "__annotations__", ()))
        for member in vars(one).values():
            code = getattr(inspect.unwrap(member) if callable(member) else None, "__code__", None)
            if code is not None and not one.__module__.startswith("torch."):
                names.update(code.co_names)
                names.update(x for x in code.co_consts if isinstance(x, str))
    return names
