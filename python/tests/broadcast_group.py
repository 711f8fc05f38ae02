"""A rank of test_broadcast's process group: python broadcast_group.py RANK FILE. Prints "ok" at the end."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tensorferry import transfer

SECONDS = 30
RANK = int(sys.argv[1])


def main():
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(35, dtype=torch.float32).reshape(5, 7)
    sharded = {"x": distribute_tensor(whole, mesh, [Shard(0)])}
    shard = transfer.shards_of(sharded)["x"]
    assert shard == transfer.shard("x", (5, 7), 4, 0, (RANK, 2)), shard
    assert transfer.local_tensors(sharded)["x"].shape == shard.length
    full = transfer.full_tensors(sharded)
    endpoint = transfer.Endpoint(listen_host="127.0.0.1")
    peers = transfer.connect_group(endpoint, timeout=SECONDS)
    if RANK == 0:
        sent = {name: x.to(torch.bfloat16) for name, x in full.items()}
        assert not transfer.broadcast_weights(sent, peers, 4, SECONDS).left_out
    else:
        weights = {"x": torch.zeros(5, 7)}
        with transfer.BroadcastReceiver(weights, peers) as receiver:
            assert receiver.receive(SECONDS) == 4
        assert torch.equal(weights["x"], whole.to(torch.bfloat16).float())
    dist.barrier()
    dist.destroy_process_group()
    endpoint.close()
    print("ok")


if __name__ == "__main__":
    main()
