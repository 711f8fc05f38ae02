"""Inputs of steps, through a ring of slots and one copy."""

import random

import pytest

import tensorferry

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensorferry import staging  # noqa: E402

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
def test_a_step_is_one_copy_into_the_same_memory(device, monkeypatch):
    inputs = staging.DecodeInputs(4, 4, SIZE, device)
    before = {name: tensor.data_ptr() for name, tensor in inputs.tensors.items()}
    inputs.stage([1, 2], [1, 2], [[0], [1]])
    copies = []
    real = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *a, **k: copies.append(1) or real(*a, **k))
    batch = inputs.stage([3, 4], [2, 3], [[0], [1]], [0.5, 1.0])
    assert copies == [1]
    assert batch.temperatures.tolist() == [0.5, 1.0]
    assert_staged(batch, [3, 4], [2, 3], [[0], [1]])
    for name, tensor in inputs.tensors.items():
        assert tensor.data_ptr() == before[name] == getattr(batch, name).data_ptr()


def test_rows_of_a_padded_batch_store_and_attend_to_nothing():
    inputs = staging.DecodeInputs(8, 4, SIZE, "cpu", slots=2)
    inputs.stage(list(range(8)), [5] * 8, [[i] for i in range(8)])
    for _ in range(3):
        inputs.stage([1, 2, 3], [5] * 3, [[0], [1], [2]], padded_to=4)
        assert inputs.tensors["slot_mapping"][3] == -1
        assert inputs.tensors["context_lens"][3] == 0


def test_rows_of_tables_are_written_only_where_they_changed(monkeypatch):
    inputs = staging.DecodeInputs(4, 4, SIZE, "cpu", slots=2)
    written = []
    real = inputs._write_row
    monkeypatch.setattr(
        inputs, "_write_row", lambda slot, row, table: written.append(row) or real(slot, row, table)
    )
    tables = [[7], [8], [9]]
    for _ in range(2):
        inputs.stage([1, 1, 1], [3, 3, 3], tables)
    assert written == [0, 1, 2] * 2  # each slot once
    tables[1].append(11)
    for length in range(4, 10):
        inputs.stage([1, 1, 1], [length] * 3, tables)
    assert written[6:] == [1, 1]


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
