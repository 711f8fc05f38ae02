"""Tests of the staging of step inputs through a ring of slots and one copy."""

import random

import pytest

import tensorferry

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import kernels, staging  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
    ),
]
on_each_device = pytest.mark.parametrize("device", DEVICES)
SIZE = 16


def sequences(count, generator):
    """(lengths, tables) of sequences that fit 4 blocks."""
    lengths = [generator.randint(1, 4 * SIZE) for _ in range(count)]
    blocks = generator.sample(range(1000), 4 * count)
    return lengths, [blocks[4 * i : 4 * i - (-n // SIZE)] for i, n in enumerate(lengths)]


def assert_staged(batch, tokens, lengths, tables):
    assert batch.input_ids.tolist() == tokens
    assert batch.positions.tolist() == [n - 1 for n in lengths]
    assert batch.context_lens.tolist() == lengths
    slots = [t[(n - 1) // SIZE] * SIZE + (n - 1) % SIZE for t, n in zip(tables, lengths)]
    assert batch.slot_mapping.tolist() == slots
    for row, table in zip(batch.block_tables.tolist(), tables):
        assert row == table + [-1] * (len(row) - len(table))


@on_each_device
def test_whatever_changes_between_steps_arrives(device):
    generator = random.Random(1)
    inputs = staging.DecodeInputs(8, 4, SIZE, device, slots=3)
    lengths, tables = sequences(8, generator)
    for step in range(200):
        count = generator.randint(1, 8)
        if step % 7 == 0:  # others, in lists that are as long or not, or the same ones filled anew
            lengths, fresh = sequences(8, generator)
            for table, blocks in zip(tables, fresh):
                table[:] = blocks
        tokens = [generator.randrange(150000) for _ in range(count)]
        batch = inputs.stage(tokens, lengths[:count], tables[:count])
        assert_staged(batch, tokens, lengths[:count], tables[:count])


@on_each_device
def test_steps_arrive_in_the_same_memory_without_a_copy_of_torchs(device, monkeypatch):
    inputs = staging.DecodeInputs(4, 4, SIZE, device)
    before = {name: tensor.data_ptr() for name, tensor in inputs.tensors.items()}
    inputs.stage([1, 2], [1, 2], [[0], [1]])
    copies = []
    real = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *a, **k: copies.append(1) or real(*a, **k))
    batch = inputs.stage([3, 4], [2, 3], [[0], [1]], [0.5, 1.0])
    assert not copies
    assert batch.temperatures.tolist() == [0.5, 1.0]
    assert_staged(batch, [3, 4], [2, 3], [[0], [1]])
    for name, tensor in inputs.tensors.items():
        assert tensor.data_ptr() == before[name] == getattr(batch, name).data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_what_is_made_on_one_stream_may_be_staged_on_another():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(1 << 28)  # what is queued behind it would end after the copies
        inputs = staging.DecodeInputs(4, 4, SIZE, "cuda")
        torch.cuda._sleep(1 << 28)
        ring = staging.Staging({"x": (torch.int64, (4,))}, "cuda")
    batch = inputs.stage([3, 4], [2, 3], [[0], [1]])
    slot = ring.begin()
    slot.arrays["x"][:] = 7
    ring.send(slot)
    torch.cuda.synchronize()
    assert_staged(batch, [3, 4], [2, 3], [[0], [1]])
    assert ring.tensors["x"].tolist() == [7] * 4


def test_rows_of_a_padded_batch_store_and_attend_to_nothing():
    inputs = staging.DecodeInputs(8, 4, SIZE, "cpu", slots=2)
    inputs.stage(list(range(8)), [5] * 8, [[i] for i in range(8)])
    for _ in range(3):
        inputs.stage([1, 2, 3], [5] * 3, [[0], [1], [2]], padded_to=4)
        assert inputs.tensors["slot_mapping"][3] == -1
        assert inputs.tensors["context_lens"][3] == 0


@on_each_device
@pytest.mark.parametrize("padded_to", [0, 5])
def test_a_graph_over_the_whole_batch_stores_nothing_for_rows_without_a_sequence(device, padded_to):
    """Such a graph has the buffers of all rows, whatever a step says that it pads to."""
    inputs = staging.DecodeInputs(8, 4, SIZE, device)
    caches = [torch.full((4, SIZE, 2, 64), 7.0, device=device) for _ in range(2)]
    new = torch.ones(8, 2, 64, device=device)

    def step():
        kernels.store_kvcache(new, new, *caches, inputs.tensors["slot_mapping"])

    step()
    assert all((cache == 7).all() for cache in caches)  # before the first step, too
    inputs.stage(list(range(8)), [5] * 8, [[i % 4] for i in range(8)])
    for count in (3, 1):
        inputs.stage([1] * count, [5] * count, [[i + 1] for i in range(count)], None, padded_to)
        for cache in caches:
            cache.fill_(7)
        step()
        for cache in caches:
            assert (cache != 7).flatten(2).any(-1).sum() == count
            assert (cache[0] == 7).all()


def test_rows_of_tables_are_written_only_where_they_changed():
    inputs = staging.DecodeInputs(4, 4, SIZE, "cpu", slots=2)
    tables = [[7], [8], [9]]
    for _ in range(4):
        inputs.stage([1, 1, 1], [3, 3, 3], tables)
    assert inputs._decode.rows_written == 6  # each slot once
    tables[1].append(11)
    for length in range(4, 10):
        inputs.stage([1, 1, 1], [length] * 3, tables)
    assert inputs._decode.rows_written == 8


def test_tables_that_shrink_grow_and_change_in_place_arrive_in_every_slot():
    inputs = staging.DecodeInputs(1, 4, SIZE, "cpu", slots=3)
    table = [1, 2, 3, 4]
    for change in (
        lambda: table.__delitem__(slice(1, None)),
        lambda: table.extend([5, 6]),
        lambda: table.__setitem__(1, 9),
        lambda: table.__setitem__(slice(None), [4, 3, 2, 1]),
        lambda: table.pop(),
    ):
        for _ in range(4):
            assert_staged(inputs.stage([7], [3], [table]), [7], [3], [table])
        change()
        assert_staged(inputs.stage([7], [3], [table]), [7], [3], [table])


class OfLists(list):
    """A list, but not exactly one."""


@pytest.mark.parametrize("made", [tuple, OfLists, lambda values: numpy.array(values)])
def test_other_sequences_than_lists_are_read(made):
    inputs = staging.DecodeInputs(2, 2, SIZE, "cpu")
    tables = [[3, 4], [5, 6]]
    batch = inputs.stage(
        made([8, 9]), made([1, 17]), made([made(table) for table in tables]), made([0.5, 2]), 2
    )
    assert_staged(batch, [8, 9], [1, 17], tables)
    assert batch.temperatures.tolist() == [0.5, 2.0]


def test_temperatures_of_steps_that_have_none_are_0():
    inputs = staging.DecodeInputs(2, 2, SIZE, "cpu", slots=1)
    inputs.stage([1, 1], [1, 1], [[0], [1]], [0.5, 0.75])
    for none in (None, [], ()):
        assert inputs.stage([1], [1], [[0]], none).temperatures.tolist() == [0]
    assert inputs.tensors["temperatures"].tolist() == [0, 0]


class Copying:
    """An event of a copy that ends when it has been asked about so often."""

    def __init__(self, asked):
        self.left = 0
        self.asked = asked
        self.recorded = 0

    def query(self):
        self.left -= 1
        return self.left < 0

    def record(self, stream):
        self.stream = stream
        self.recorded += 1
        self.left = self.asked


def test_a_slot_is_written_again_only_when_its_copy_has_ended(monkeypatch):
    ring = staging.Staging({"x": (torch.int64, (4,))}, "cpu", slots=2)
    for slot in ring.slots:
        slot.event = Copying(asked=5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    first = ring.begin()
    ring.send(first)
    assert ring.begin() is not first
    assert ring.begin() is first
    assert first.event.left < 0
    assert first.event.recorded == 1
    assert first.event.stream == "the stream of cpu"  # its memory's
    monkeypatch.setattr(staging, "_SECONDS", 0.0)
    first.event.left = 1 << 40
    ring.begin()
    with pytest.raises(tensorferry.Timeout, match="has not ended"):
        ring.begin()


def test_fields_are_of_the_types_and_shapes_asked_for():
    ring = staging.Staging({"a": (torch.int8, (3,)), "b": (torch.float32, (2, 5))}, "cpu")
    slot = ring.begin()
    slot.arrays["a"][:] = [1, 2, 3]
    slot.arrays["b"][:] = 7
    ring.send(slot)
    assert ring.tensors["a"].tolist() == [1, 2, 3]
    assert torch.equal(ring.tensors["b"], torch.full((2, 5), 7.0))
    assert all(tensor.data_ptr() % 16 == 0 for tensor in ring.tensors.values())


def test_staging_works_inside_and_outside_of_inference_mode():
    with torch.inference_mode():
        inputs = staging.DecodeInputs(2, 2, SIZE, "cpu")
        inputs.stage([1], [1], [[0]])
    assert inputs.stage([2], [2], [[0]]).input_ids.tolist() == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "0 sequences, padded to 0; there is room for 1 to 2"),
        (([1] * 3, [1] * 3, [[0]] * 3), "3 sequences"),
        (([1], [1], [[0]], None, 3), "padded to 3"),
        (([1, 1], [1, 1], [[0]]), "2 tokens, 2 lengths, 1 tables and 0 temperatures"),
        (([1, 1], [1, 1], [[0], [1]], [0.5]), "2 tables and 1 temperatures"),
        (([1], [17], [[0]]), "sequence 0 has 17 tokens and 1 blocks of 16"),
        (([1, 1], [1, 0], [[0], [1]]), "sequence 1 has 0 tokens"),
        (([1], [17], [[0, 1, 2]]), "has 3 blocks; there is room for 2"),
    ],
)
def test_what_cannot_be_staged_is_told(arguments, message):
    inputs = staging.DecodeInputs(2, 2, SIZE, "cpu")
    with pytest.raises(tensorferry.InvalidArgument, match=message):
        inputs.stage(*arguments)
    assert inputs.stage([5], [1], [[1]]).slot_mapping.tolist() == [SIZE]  # no harm is done


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["x"], [1], [[0]]), TypeError, r"the token of sequence 0 is 'x' \(str\); give an int"),
        (([1, 1], [1, 1.0], [[0], [0]]), TypeError, "the length of sequence 1 is 1.0"),
        (([1], [1], [[None]]), TypeError, "the block table's entry of sequence 0 is None"),
        (([1], [1], [5]), TypeError, r"the table of sequence 0 is 5 \(int\); give a list"),
        ((7, [1], [[0]]), TypeError, "tokens is 7"),
        (([1], [1], [[0]], ["hot"]), TypeError, "the temperature of sequence 0 is 'hot'"),
        (([1], [1], [[1 << 31]]), tensorferry.InvalidArgument, "2147483648, which int32 cannot"),
        (([1], [1], [[1 << 28]]), tensorferry.InvalidArgument, "the slot of sequence 0"),
        (([1 << 63], [1], [[0]]), tensorferry.InvalidArgument, "9223372036854775808, which int64"),
        (([1], [1], [[0]], [1e39]), tensorferry.InvalidArgument, "which float32 cannot hold"),
    ],
)
def test_numbers_that_cannot_be_staged_are_told_and_leave_no_trace(arguments, error, message):
    inputs = staging.DecodeInputs(2, 2, SIZE, "cpu", slots=1)
    inputs.stage([5], [1], [[1]])
    with pytest.raises(error, match=message):
        inputs.stage(*arguments)
    assert_staged(inputs.stage([5], [1], [[1]]), [5], [1], [[1]])


def test_an_error_of_a_number_itself_is_let_through():
    class Broken:
        def __index__(self):
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        staging.DecodeInputs(2, 2, SIZE, "cpu").stage([Broken()], [1], [[0]])


def test_lists_that_change_and_calls_that_overlap_are_refused():
    inputs = staging.DecodeInputs(2, 2, SIZE, "cpu")
    tokens = []

    class Index:
        def __init__(self, act):
            self.act = act

        def __index__(self):
            self.act()
            return 1

    tokens[:] = [Index(tokens.clear), 1]
    with pytest.raises(tensorferry.InvalidArgument, match="tokens became shorter, 0"):
        inputs.stage(tokens, [1, 1], [[0], [1]])
    again = Index(lambda: inputs.stage([1], [1], [[0]]))
    with pytest.raises(tensorferry.InvalidArgument, match="one thread at a time"):
        inputs.stage([again], [1], [[0]])
    assert inputs.stage([5], [1], [[1]]).input_ids.tolist() == [5]


def test_a_module_that_was_built_without_cuda_leaves_the_copy_to_torch(monkeypatch):
    real = staging._core.staging.Decode

    def without(memory_and_slots, *rest):
        if memory_and_slots[0]:
            raise tensorferry.Unsupported("built without CUDA")
        return real(memory_and_slots, *rest)

    monkeypatch.setattr(staging._core.staging, "Decode", without)
    inputs = staging.DecodeInputs(4, 4, SIZE, "cpu", slots=2)
    generator = random.Random(2)
    for step in range(10):
        lengths, tables = sequences(4, generator)
        assert_staged(inputs.stage([step] * 4, lengths, tables), [step] * 4, lengths, tables)


def on_simulated_devices(monkeypatch, slots=2):
    """(memory, native Decode) of 2 sequences and 2 blocks: fields 64 bytes from each other."""
    monkeypatch.setenv("FERRY_DEVICES", "simulated:1")
    native = staging._core.staging
    memory = native.TrialMemory(0, 6 * 64, slots)
    starts = tuple(range(0, 6 * 64, 64))
    return memory, native.Decode(
        (memory.address, memory.slots), starts, (2, 2, SIZE), 0, memory
    )


def test_steps_come_to_a_device_in_the_streams_order(monkeypatch):
    memory, decode = on_simulated_devices(monkeypatch)
    for step in range(50):  # many more than there are slots, which waits for copies
        assert decode.stage(memory.stream, [step, 7], [1, 2], [[step], [3, 4]], [0.5, 1], 2) == 2
    read = memory.read()
    fields = [numpy.frombuffer(read, numpy.int64, 2, start) for start in (0, 64)]
    fields += [numpy.frombuffer(read, numpy.int32, 2, start) for start in (128, 192)]
    slots = [49 * SIZE, 3 * SIZE + 1]
    assert [field.tolist() for field in fields] == [[49, 7], [0, 1], slots, [1, 2]]
    assert numpy.frombuffer(read, numpy.float32, 2, 256).tolist() == [0.5, 1]
    assert numpy.frombuffer(read, numpy.int32, 4, 320).tolist() == [49, -1, 3, 4]


def test_a_copy_that_does_not_end_is_a_timeout_and_the_step_may_be_tried_again(monkeypatch):
    memory, decode = on_simulated_devices(monkeypatch, slots=1)
    decode.timeout = 0.0
    late = 0
    for step in range(200):
        try:
            decode.stage(memory.stream, [step], [1], [[1]], None, 0)
        except tensorferry.Timeout as error:
            assert "has not ended in 0 s" in str(error)
            late += 1
    assert late
    decode.timeout = 60.0
    decode.stage(memory.stream, [1234], [1], [[1]], None, 0)
    assert numpy.frombuffer(memory.read(), numpy.int64, 1).tolist() == [1234]


def test_memory_outlives_the_copies_from_it(monkeypatch):
    memory, decode = on_simulated_devices(monkeypatch)
    decode.stage(memory.stream, [1], [1], [[1]], None, 0)
    del memory, decode  # waits for the copy, or the simulated device is lost by it
    memory, decode = on_simulated_devices(monkeypatch)
    decode.stage(memory.stream, [6], [1], [[1]], None, 0)
    assert numpy.frombuffer(memory.read(), numpy.int64, 1).tolist() == [6]


def test_the_hosts_time_is_measured(capsys):
    staging.main(["--device", "cpu", "--steps", "5", "--batches", "1,2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("host time per step on cpu")
    assert [line.split()[0] for line in lines[2:]] == ["1", "2"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_graph_finds_each_steps_inputs_in_its_own_buffers():
    inputs = staging.DecodeInputs(4, 4, SIZE, "cuda")
    total = torch.zeros(4, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def work():
        total.copy_(inputs.tensors["input_ids"] + inputs.tensors["block_tables"].sum(1))

    work()
    with torch.cuda.graph(graph):
        work()
    for step in range(20):  # more than there are slots, without a wait between
        inputs.stage([step, step + 1], [1, 1], [[step], [2]])
        graph.replay()
    assert total[:2].tolist() == [19 + 19 - 3, 20 + 2 - 3]


def test_a_table_that_lets_go_of_itself_while_it_is_read_is_refused():
    inputs = staging.DecodeInputs(4, 2, 8, "cpu")
    tables = []

    class Vanishes:
        def __iter__(self):
            tables.clear()
            raise TypeError("nothing to iterate over")

    tables.append(Vanishes())
    with pytest.raises(TypeError, match="table of sequence 0"):
        inputs.stage([1], [1], tables)


def test_block_sizes_that_no_slot_number_can_hold_are_refused():
    with pytest.raises(tensorferry.InvalidArgument, match="less than 2\\^31"):
        staging.DecodeInputs(4, 2, 1 << 31, "cpu")
