"""Histories by hand: the value of a token is the number of its latent frame, and its key a bare key
of its frame and cell, rotated to its place.
"""

import torch
from keepsake.kv_policies import Chunk, KVCache, Storage, Take
from keepsake.kv_policies.cache.rope import turn, turn_in_time_and_space

from ... import fake

TOKENS = fake.GRID[0] * fake.GRID[1]


def bare_keys(frames, cells):
    """All alike, `[1, S, H, D]`."""
    return torch.ones(1, len(frames), fake.HEADS, fake.DIM)


def rotated(k, position, cell, geometry):
    columns = geometry.grid[1]
    places = position, cell // columns, cell % columns
    return turn(k, *turn_in_time_and_space(*places, geometry, k.device))


def history(retention, frames, chunk_frames, bare=bare_keys):
    """What a chunk reads, by its first latent frame: the values of its history by latent frame, the
    positions of these, and the bank as a copy of its state.
    """
    geometry = fake.geometry(chunk_frames)
    take = Take(frames, 0, (1.0, 0.0), 1)
    cache = KVCache(
        geometry, retention.banks(geometry, take), Storage(), torch.float32, torch.device("cpu")
    )
    (bank,) = cache.banks
    run, seen = retention.start(geometry, take), {}
    for index, start in enumerate(range(0, frames, chunk_frames)):
        chunk = Chunk(index, start, min(chunk_frames, frames - start))
        run.begin_chunk(cache, chunk)
        rows = slice(0, bank.committed)
        values = bank.read(0, rows)[1][0, ::TOKENS, 0, 0]
        state = bank.state()
        seen[start] = values.tolist(), bank.position[rows][::TOKENS].tolist(), state
        cache.reserve(chunk.span)
        own = slice(bank.committed, bank.length)
        frame, cell = bank.frame[own], bank.cell[own]
        k = rotated(bare(frame, cell), bank.position[own], cell, geometry)
        v = frame.float()[None, :, None, None].expand_as(k)
        for layer in range(geometry.layers):
            bank.write(layer, k, v)
        cache.commit()
        run.after_clean(cache, chunk, torch.zeros(0))
    return seen
