"""Times kernels, compares them with the machine's limits, and profiles programs."""

import contextlib
import functools
import pathlib
import statistics
import time
import tracemalloc
from typing import NamedTuple

try:
    import torch
except ImportError:
    torch = None

__all__ = ["Measured", "MemoryReport", "benchmark_kernel", "memory_report", "profile"]

# Clones of the arguments are gone round until they are this much together, so that none is still in
# a GPU's L2 cache when its turn comes again.
_BEYOND_CACHE_BYTES = 256 << 20
_MOST_CLONES = 64
_LAUNCHES_PER_GRAPH = 20


class Measured(float):
    """Seconds per call, the median; with what else was measured.

    p10, p90, mean: seconds per call. nbytes: what the call reads and writes at least: its arguments
    and results once each. gbps: that per second, in 1e9 bytes. ceiling_gbps: a large copy's rate on
    that device, reads and writes together, and share: of it. graph: timed by CUDA graphs.
    """

    def __new__(cls, samples, name, nbytes, ceiling_gbps, graph):
        samples = sorted(samples)
        self = super().__new__(cls, statistics.median(samples))
        self.name = name
        self.median = float(self)
        self.mean = statistics.fmean(samples)
        self.p10 = samples[len(samples) // 10]
        self.p90 = samples[min(len(samples) - 1, len(samples) * 9 // 10)]
        self.nbytes = nbytes
        self.gbps = nbytes / self / 1e9 if self > 0 else 0.0
        self.ceiling_gbps = ceiling_gbps
        self.share = self.gbps / ceiling_gbps if ceiling_gbps else 0.0
        self.graph = graph
        return self

    def __str__(self):
        return (
            f"{self.name}: {self * 1e6:.2f} us (p10 {self.p10 * 1e6:.2f}, p90 {self.p90 * 1e6:.2f}), "
            f"{self.gbps:.1f} GB/s, {self.share:.0%} of a copy's {self.ceiling_gbps:.1f}"
        )


def _arrays(things):
    for thing in things:
        if isinstance(thing, (tuple, list)):
            yield from _arrays(thing)
        elif isinstance(thing, dict):
            yield from _arrays(thing.values())
        elif hasattr(thing, "nbytes") and hasattr(thing, "shape"):
            yield thing


def _on_gpu(things):
    return any(getattr(x, "is_cuda", False) for x in _arrays(things))


def _moved(arguments, result):
    return sum({id(x): x.nbytes for x in _arrays([arguments, result])}.values())


def _cloned(thing):
    if isinstance(thing, (tuple, list)):
        return type(thing)(map(_cloned, thing))
    if isinstance(thing, dict):
        return {key: _cloned(value) for key, value in thing.items()}
    return thing.clone() if torch is not None and isinstance(thing, torch.Tensor) else thing


def benchmark_kernel(fn, *args, warmup=20, iters=100, name=None, **kwargs):
    """Times fn(*args, **kwargs); the result is a float, seconds per call: see Measured.

    On a GPU by CUDA graphs over clones of the arguments that do not fit the L2 cache together, or,
    where fn cannot be captured, by events around each call. On the CPU by the clock.
    """
    if iters < 1 or warmup < 0:
        raise ValueError(f"benchmark_kernel: iters is {iters} and warmup {warmup}; give 1 or more, "
                         "and 0 or more")
    name = name or getattr(fn, "__name__", "kernel")
    result = fn(*args, **kwargs)
    nbytes = _moved((args, kwargs), result)
    for _ in range(warmup):
        fn(*args, **kwargs)
    if _on_gpu((args, kwargs, result)):
        samples, graph = _gpu_samples(fn, args, kwargs, nbytes, iters)
        device = next(x.device for x in _arrays((args, kwargs, result)) if x.is_cuda)
        return Measured(samples, name, nbytes, _copy_gbps(str(device)), graph)
    samples = []
    for _ in range(iters):
        start = time.perf_counter()
        fn(*args, **kwargs)
        samples.append(time.perf_counter() - start)
    return Measured(samples, name, nbytes, _copy_gbps("cpu"), False)


def _gpu_samples(fn, args, kwargs, nbytes, iters):
    clones = min(_MOST_CLONES, max(2, _BEYOND_CACHE_BYTES // max(nbytes, 1) + 1))
    sets = [(args, kwargs)] + [(_cloned(args), _cloned(kwargs)) for _ in range(clones - 1)]
    calls = max(_LAUNCHES_PER_GRAPH, clones)
    try:
        graph = _captured(fn, sets, calls)
    except RuntimeError:
        torch.cuda.synchronize()
        turns = (sets[i % clones] for i in range(iters))
        return [_timed(lambda turn=turn: fn(*turn[0], **turn[1])) for turn in turns], False
    graph.replay()
    return [_timed(graph.replay) / calls for _ in range(max(5, iters // calls))], True


def _captured(fn, sets, calls):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # whatever fn sets up at its first call on a stream
        for args, kwargs in sets[:2]:
            fn(*args, **kwargs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            args, kwargs = sets[i % len(sets)]
            fn(*args, **kwargs)
    return graph


def _timed(call):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


@functools.lru_cache(maxsize=None)
def _copy_gbps(device):
    """The rate of a copy that no cache holds: bytes read and written per second."""
    nbytes = 64 << 20 if device == "cpu" else 512 << 20
    if torch is not None:
        from_, into = (torch.ones(nbytes, dtype=torch.uint8, device=device) for _ in range(2))
        copy = functools.partial(into.copy_, from_)
    else:
        import numpy

        from_, into = (numpy.ones(nbytes, numpy.uint8) for _ in range(2))
        copy = functools.partial(numpy.copyto, into, from_)
    best = None
    for _ in range(5):
        if device == "cpu":
            start = time.perf_counter()
            copy()
            seconds = time.perf_counter() - start
        else:
            seconds = _timed(copy)
        best = min(best or seconds, seconds)
    return 2 * nbytes / best / 1e9


class MemoryReport(NamedTuple):
    """Bytes of one call: at most how many more were allocated during it, and those of its results."""

    peak_bytes: int
    result_bytes: int
    device: str


def memory_report(fn, *args, **kwargs):
    """What one call of fn(*args, **kwargs) allocates, in a MemoryReport.

    On a GPU as torch's caching allocator counts it; on the CPU by torch's profiler, or, where no
    tensor is passed, by tracemalloc, which NumPy tells of its arrays. The call before it is not counted.
    """
    known = {id(x) for x in _arrays((args, kwargs))}
    result = fn(*args, **kwargs)  # what is set up at a first call is not of this one
    on_gpu = next((x.device for x in _arrays((args, kwargs, result)) if _on_gpu([x])), None)
    of_torch = torch is not None and any(
        isinstance(x, torch.Tensor) for x in _arrays((args, kwargs, result))
    )
    del result
    if on_gpu is not None:
        result, peak = _gpu_peak(fn, args, kwargs, on_gpu)
    else:
        result, peak = (_torch_peak if of_torch else _traced_peak)(fn, args, kwargs)
    made = {id(x): x.nbytes for x in _arrays([result]) if id(x) not in known}
    return MemoryReport(peak, sum(made.values()), str(on_gpu or "cpu"))


def _gpu_peak(fn, args, kwargs, device):
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = fn(*args, **kwargs)
    torch.cuda.synchronize(device)
    return result, torch.cuda.max_memory_allocated(device) - before


def _torch_peak(fn, args, kwargs):
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as p:
        result = fn(*args, **kwargs)
    events = [e for e in p.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return result, peak


def _traced_peak(fn, args, kwargs):
    traced = tracemalloc.is_tracing()
    if not traced:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = fn(*args, **kwargs)
        return result, tracemalloc.get_traced_memory()[1] - before
    finally:
        if not traced:
            tracemalloc.stop()


@contextlib.contextmanager
def profile(folder=".", rows=50):
    """Profiles what is done inside, and writes profile_trace.json (Chrome's format; Perfetto opens
    it) and profile_report.txt: the costliest operations by the CPU's time and the GPU's, and memory.

        with tensorferry.profile("out"):
            model(x)
    """
    if torch is None:
        from tensorferry.errors import Unsupported

        raise Unsupported("profile() needs torch; install it: python -m pip install torch")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    gpu = torch.cuda.is_available()
    if gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as p:
        yield p
    p.export_chrome_trace(str(folder / "profile_trace.json"))
    averages = p.key_averages()
    report = ["By the CPU's time", averages.table(sort_by="cpu_time_total", row_limit=rows)]
    if gpu:
        # Called cuda_time_total before torch 2.6.
        named = "device_time_total" if hasattr(averages[0], "device_time_total") else "cuda_time_total"
        report += ["By the GPU's time", averages.table(sort_by=named, row_limit=rows)]
        report += [
            f"GPU memory: {before} bytes before, {torch.cuda.memory_allocated()} after, "
            f"{torch.cuda.max_memory_allocated()} at most"
        ]
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in averages)
    report += [f"CPU memory: {allocated} bytes allocated by torch's operations"]
    (folder / "profile_report.txt").write_text("\n".join(report) + "\n")
