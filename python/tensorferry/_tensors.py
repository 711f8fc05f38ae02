"""The check of tensors that are sent or filled: one error names the tensor, the reason and the fix."""

import sys

from tensorferry import _core, errors


def check(name, x, *, written=False, strided=False):
    """Raises InvalidArgument unless the bytes of x, a tensor or an array, can be sent, or written.

    strided: torch copies the elements of a tensor, which may then lie anywhere. Returns the place of
    x: its address and bytes, or None if it is strided.
    """
    if not isinstance(name, str):
        raise errors.InvalidArgument(
            f"the name of a tensor is {name!r}, of type {type(name).__name__}; give a str"
        )
    if hasattr(type(x), "untyped_storage"):  # torch's
        if why := refusal(x, written=written, strided=strided):
            _refuse(name, why)
        return None if strided else (x.data_ptr(), x.nbytes)
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        _refuse(name, f"{_type_name(x)} is neither a tensor nor an array; leave it out")
    # A class of another library, as astropy's, may derive from NumPy's masked array.
    if any(base.__module__.startswith("numpy.ma") for base in type(x).__mro__):
        _refuse(name, f"{_type_name(x)} has values that are masked; give .filled() of it")
    flags = getattr(x, "flags", None)
    if not getattr(flags, "c_contiguous", True):  # pandas' flags lack c_contiguous
        _refuse(
            name,
            "it is not in C order, and elements are paired by their order; give "
            "numpy.ascontiguousarray() of it",
        )
    return _core._place_of(x, written, f"'{name}'".encode(errors="backslashreplace").decode())


def refusal(x, written=False, strided=False):
    """Why the bytes in a torch tensor's memory are not its values in order, and the fix, or ""."""
    if why := _kind_refusal(x):
        return why
    if strided:
        if written and _may_overlap(x):
            return "several of its elements are one in memory; give .clone() of it"
    elif not x.is_contiguous():
        return "the tensor's elements do not follow each other; give .contiguous() of it"
    return _memory_refusal(x, written)


def _kind_refusal(x):
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return ""
    if hasattr(x, "materialize"):
        return f"{_type_name(x)} has no values yet; run the module once before"
    if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        if hasattr(x, "to_local"):
            fix = "give .to_local() of it, or .full_tensor()"
        else:
            fix = "give the plain tensors that it stands for"
        return f"{_type_name(x)} has no memory of its own; {fix}"
    if x.is_nested:
        return "it is a nested tensor; give the tensors of its .unbind()"
    if x.layout is not torch.strided:
        return f"its layout is {x.layout}; give .to_dense() of it"
    if x.is_quantized:
        return "it is quantized, and its scale is not in its memory; give .dequantize() of it"
    place = x.device.type
    if place not in ("cpu", "cuda"):
        return f"a tensor on the device '{place}' cannot be moved; move it to 'cpu' or 'cuda' first"
    if lazy := "conj" if x.is_conj() else "neg" if x.is_neg() else "":
        return (
            "it is a lazy conjugate or negative view, whose bytes are not its values; give "
            f".resolve_{lazy}() of it"
        )
    return ""


def _memory_refusal(x, written):
    try:
        storage = x.untyped_storage()
        end = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride()))
        needed = (x.storage_offset() + end) * x.element_size() if x.numel() > 0 else 0
        held = storage.nbytes() if needed == 0 or x.data_ptr() != 0 else 0
    except RuntimeError as error:  # as of a tensor of torch.func
        return f"its memory cannot be had ({str(error).splitlines()[0]}); give .clone() of it"
    if needed <= held:
        # torch does not record whether memory is read-only: from_numpy() accepts such arrays.
        is_on_host = needed > 0 and x.device.type == "cpu"
        if written and is_on_host and not _core._is_writable(x.data_ptr(), end * x.element_size()):
            return "its memory is read-only, as of a file that is mapped so; give .clone() of it"
        return ""
    return (
        f"its storage has {held} bytes, of which it needs {needed}; give it memory, with "
        "untyped_storage().resize_() or .clone()"
    )


def _may_overlap(x):
    """Whether two elements may share memory; some tensors whose elements interleave count, too."""
    reach = 1
    for step, size in sorted((step, size) for size, step in zip(x.shape, x.stride()) if size > 1):
        if step < reach:
            return True
        reach += step * (size - 1)
    return False


def bytes_of(x):
    """A contiguous torch tensor as one of bytes. Strides of dimensions of one element, which may be
    anything then, are not asked for."""
    import torch

    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


def dtype_of(x):
    """Its name, which NumPy and torch share."""
    return str(x.dtype).removeprefix("torch.")


def torch_dtype(name):
    """torch's dtype of this name, or None where tensors of it cannot be received."""
    import torch

    dtype = getattr(torch, name, None)
    # torch ends the process where a tensor of a quantized type without a scale is printed.
    is_known = isinstance(dtype, torch.dtype) and not name.startswith(("qint", "quint"))
    return dtype if is_known else None


def _refuse(name, why):
    raise errors.InvalidArgument(f"'{name}': {why}")


def _type_name(x):
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")
