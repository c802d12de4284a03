"""What a node's result says of a long take: a summary, and the rest in a file that it names."""

import json
from dataclasses import replace
from pathlib import Path

import folder_paths
import pytest
import torch
from keepsake.host.show.result_files import stats_result
from keepsake.kv_policies import KVPolicy
from keepsake.nodes.estimate import KVMemoryEstimate
from keepsake.nodes.stats import KVMemoryMap, KVMemoryStats
from keepsake.rollout.memory_map import MemoryMap
from support import tiny

LARGEST_MESSAGE = 2**18  # bytes; clients' limits begin at 2**20
FRAMES = 5000


def bytes_of(ui) -> int:
    return len(json.dumps(ui))


def values(ui, key):
    """What stands in the file that a result names as the host names its own."""
    (file,) = ui[key]
    assert set(file) == {"filename", "subfolder", "type"} and file["type"] == "temp"
    path = Path(folder_paths.get_temp_directory(), file["subfolder"], file["filename"])
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def long_take():
    """The stats of one, of a chunk for each frame; each chunk reads the 24 frames before it."""
    stats = []
    tiny.ours(tiny.tiny_model(), tiny.noise_of(2, **tiny.SIZE), 1, on_stats=stats.append)
    last, (memory_map,) = stats[0].chunks[-1], stats[0].memory_maps
    rows = [
        replace(last, index=i, start_frame=i, reads=(0.0,) * max(0, i - 24) + (0.5,) * min(i, 24))
        for i in range(FRAMES)
    ]
    held_until = torch.arange(FRAMES, dtype=torch.int32)[None, :, None, None].repeat(1, 1, 2, 2)
    return replace(
        stats[0],
        chunks=tuple(rows),
        memory_maps=(MemoryMap((held_until + 24).clamp(max=FRAMES - 1), memory_map.shares),),
    )


def test_a_long_takes_stats_are_a_small_message_and_a_file(long_take):
    result = KVMemoryStats.execute(long_take)
    assert bytes_of(result.ui) < LARGEST_MESSAGE
    (summary,), file = result.ui["kv_stats"], values(result.ui, "kv_stats_file")
    assert (summary["frames"], summary["prune_ratio"]) == (FRAMES, long_take.prune_ratio)
    assert {**file, **json.loads(json.dumps(summary))} == file
    # All but `reads` is as in the JSON output.
    output = json.loads(result.result[0])
    for row in output["chunks"]:
        del row["reads"]
    assert file == output
    assert len(file["chunks"]) == len(file["kept_by_frame"][0]) == FRAMES


def test_a_node_that_fails_sends_no_more(long_take):
    """The host sends str() of the inputs of a node that fails."""
    assert str(long_take) == "<KVStats of 5000 latent frames>"


def test_the_samplers_result_of_a_long_take_is_a_small_message(long_take):
    assert bytes_of(stats_result(long_take)) < LARGEST_MESSAGE


def test_a_long_takes_memory_map_is_a_small_message_and_a_file(long_take):
    images = torch.rand(1, 16, 16, 3).expand(long_take.pixel_frames, -1, -1, -1)
    result = KVMemoryMap.execute(images, long_take, 0.25)
    assert bytes_of(result.ui) < LARGEST_MESSAGE
    (summary,), file = result.ui["memory_map"], values(result.ui, "memory_map_file")
    assert {**file, **json.loads(json.dumps(summary))} == file
    assert file["reads"][30] == {str(frame): 0.5 for frame in range(6, 30)}
    assert file["reads"][0] is None and len(file["dropped"][0]) == FRAMES
    # As many numbers as the take has frames, and not as their square.
    assert bytes_of(file) < 500 * FRAMES


def test_a_long_takes_estimate_is_a_small_message_and_a_file():
    noise = tiny.noise_of(FRAMES, **tiny.SIZE)
    latent = {"samples": noise}
    result = KVMemoryEstimate.execute(tiny.tiny_model(), latent, 3, 1.0, 2, 1, KVPolicy())
    assert bytes_of(result.ui) < LARGEST_MESSAGE
    (summary,), file = result.ui["kv_estimate"], values(result.ui, "kv_estimate_file")
    assert {**file, **json.loads(json.dumps(summary))} == file == json.loads(result.result[1])
    assert len(file["chunks"]) == FRAMES / 2
