"""verl's checkpoint engines by "ferry": verl's own manager and workers, as actors of real Ray."""

import asyncio
import os
import pathlib
import time
import types

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("verl", reason="verl is not installed; scripts/test_engines installs it")

from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry  # noqa: E402
from verl.single_controller.ray import (  # noqa: E402
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
)
from verl.workers.config import CheckpointEngineConfig  # noqa: E402

import tensorferry  # noqa: E402
import verl_workers  # noqa: E402
from tensorferry.verl import FerryCheckpointEngine  # noqa: E402

SECONDS = 60
OPTIONS = {"settings": {"listen_host": "127.0.0.1"}, "timeout": 10.0, "join_timeout": 60.0}


@pytest.fixture(scope="module")
def cluster():
    folders = [pathlib.Path(__file__).parent, pathlib.Path(tensorferry.__file__).parent.parent]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=256 << 20,
             runtime_env={"env_vars": variables})
    yield
    ray.shutdown()


def group(cls, count, **named):
    made = RayClassWithInitArgs(ray.remote(cls), **named)
    pool = RayResourcePool([count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(pool, made, device_name="cpu")


class Replica:
    """A rollout's replica without a server."""

    def __init__(self, workers):
        self.workers, self.resumed = workers, 0

    async def nothing(self):
        pass

    abort_all_requests = release_kv_cache = resume_kv_cache = nothing

    async def resume_generation(self):
        self.resumed += 1


@pytest.fixture(scope="module")
def managed(cluster):
    """For all tests, as an actor takes long to load verl."""
    config = CheckpointEngineConfig(
        backend="ferry", update_weights_bucket_megabytes=1, engine_kwargs={"ferry": OPTIONS},
        custom_backend_module="tensorferry.verl",
    )
    rollout_config = types.SimpleNamespace(checkpoint_engine=config, name="vllm")
    actors = group(verl_workers.Trainer, 2, engine_options=OPTIONS)
    rollouts = group(verl_workers.Rollout, 2, rollout_config=rollout_config)
    replicas = [Replica([worker]) for worker in rollouts.workers]
    manager = CheckpointEngineManager(config, actors, replicas)
    yield types.SimpleNamespace(actors=actors, rollouts=rollouts, manager=manager, replicas=replicas)
    for worker in actors.workers + rollouts.workers:
        ray.kill(worker)


def resumed(managed):
    return [each.resumed for each in managed.replicas]


def test_all_rollouts_of_verl_get_each_version_whole(managed):
    for version in (1, 2):
        metrics = managed.manager.update_weights(global_steps=version)
        assert metrics["ferry/bytes"] == sum(x.nbytes for _, x in verl_workers.weights(version))
        assert managed.rollouts.has_version(version) == [True, True]
    assert resumed(managed) == [2, 2]


def test_a_trainer_that_fails_half_way_ends_the_update_and_the_next_one_is_whole(managed):
    before = resumed(managed)
    managed.actors.fail_half_way()
    with pytest.raises((ray.exceptions.RayError, ZeroDivisionError, tensorferry.PeerLost)):
        managed.manager.update_weights(global_steps=3)
    assert resumed(managed) == before
    assert managed.rollouts.has_version(3) == [False, False]
    managed.manager.update_weights(global_steps=4)
    assert managed.rollouts.has_version(4) == [True, True]


def test_a_rollout_that_dies_ends_the_update_and_the_other_has_the_version_whole(managed):
    before = resumed(managed)  # the last test of these workers
    ray.get(managed.rollouts.workers[0].die_half_way.remote())
    with pytest.raises((ray.exceptions.RayError, tensorferry.PeerLost)):
        managed.manager.update_weights(global_steps=5)
    deadline = time.monotonic() + SECONDS  # Ray raises before the others have ended
    while not ray.get(managed.rollouts.workers[1].has_version.remote(5)):
        assert time.monotonic() < deadline
    assert resumed(managed) == before


def test_only_rank_0_of_the_trainer_sends():
    metadata = [{"id": str(i), "address": ""} for i in range(5)]
    actors, rollouts = FerryCheckpointEngine.build_topology(2, 3, metadata)
    assert actors["rank"] == [0, -1] and rollouts["rank"] == [1, 2, 3]
    assert actors["receivers"][0] == ["2", "3", "4"] and rollouts["master"] == [metadata[0]] * 3
    assert {len(x) for x in actors.values()} == {2} and {len(x) for x in rollouts.values()} == {3}


def test_what_is_called_too_early_or_wrong_says_so():
    engine = CheckpointEngineRegistry.new("ferry", bucket_size=1 << 20, **OPTIONS)
    with pytest.raises(tensorferry.InvalidArgument, match="init_process_group"):
        asyncio.run(engine.send_weights([]))
    with pytest.raises(tensorferry.InvalidArgument, match="rollout_dtype is 'int9'"):
        CheckpointEngineRegistry.new("ferry", bucket_size=1, rollout_dtype="int9")
    engine.finalize()  # does nothing
