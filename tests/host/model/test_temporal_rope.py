"""A RoPE that another node has patched in time (RIFLEx and its kin): stored keys are turned by its
angles, or the policy is refused.
"""

import pytest
import torch
from comfy.ldm.flux.layers import EmbedND
from comfy.ldm.flux.math import apply_rope1
from comfy.ldm.wan.model import sinusoidal_embedding_1d
from keepsake.host.model.temporal_rope import spatial_angles, temporal_angles
from keepsake.kv_policies import DeCoPrune, KVPolicy, RollingForcing, SinkWindow
from keepsake.kv_policies.cache.rope import temporal_frequencies
from keepsake.rollout.session import Session
from support import tiny

EMBEDDER = "diffusion_model.rope_embedder"


class Slower(EmbedND):
    """The temporal pair 1 turns at a tenth of its rate; all else as in the host."""

    def forward(self, ids):
        slow = ids.clone()
        slow[..., 0] *= 0.1
        out, changed = super().forward(ids), super().forward(slow)
        out[..., 1, :, :] = changed[..., 1, :, :]
        return out


class Standing(EmbedND):
    """Time stands from latent frame 8 on."""

    def forward(self, ids):
        return super().forward(torch.cat([ids[..., :1].clamp(max=8), ids[..., 1:]], -1))


def embedder(kind=EmbedND, theta=10000):
    return kind(dim=16, theta=theta, axes_dim=[8, 4, 4])


def with_rope(kind, **options):
    model = tiny.tiny_model(layers=2, causal=False, **options).clone()
    model.add_object_patch(EMBEDDER, embedder(kind))
    return model


def test_angles_are_those_of_the_module():
    stock = temporal_frequencies(8, 10000.0)
    assert temporal_angles(embedder(), 8, 10000.0) is None
    slower = stock * torch.tensor([1, 0.1, 1, 1])
    found = torch.tensor(temporal_angles(embedder(Slower), 8, 10000.0), dtype=torch.float64)
    assert torch.allclose(found, slower, rtol=0, atol=1e-9)
    other = torch.tensor(temporal_angles(embedder(theta=300), 8, 10000.0), dtype=torch.float64)
    assert torch.allclose(other, temporal_frequencies(8, 300.0), rtol=0, atol=1e-9)
    assert temporal_angles(embedder(Standing), 8, 10000.0) == ()


class Wide(EmbedND):
    """A column is two columns wide, and rows stand from the ninth on where it says so."""

    rows = 10**6

    def forward(self, ids):
        frame, row, column = ids.unbind(-1)
        return super().forward(torch.stack([frame, row.clamp(max=self.rows), 2 * column], -1))


class Flat(Wide):
    rows = 8


def test_angles_on_the_grid_are_those_of_the_module():
    stock = tuple(temporal_frequencies(4, 10000.0).tolist())
    assert spatial_angles(embedder(), [8, 4, 4], 10000.0) is None
    found = spatial_angles(embedder(Wide), [8, 4, 4], 10000.0)
    assert found[0] == stock and found[1] == pytest.approx([2 * angle for angle in stock])
    scaled = spatial_angles(embedder(), [8, 4, 4], 10000.0, scales=(0.5, 1.0))
    assert scaled == (tuple(angle / 2 for angle in stock), stock)
    assert spatial_angles(embedder(Flat), [8, 4, 4], 10000.0) == ()


@pytest.mark.parametrize(
    "policy",
    [
        KVPolicy(SinkWindow(3, 9)),
        KVPolicy(SinkWindow(3, 9, "shifted")),
        KVPolicy(
            DeCoPrune(
                mode="target_keep",
                target_keep=0.5,
                dense_chunks=1,
                reindex="periodic",
                virtual_length=4,
                reindex_recent=1,
            )
        ),
    ],
    ids=["absolute", "shifted", "periodic"],
)
@pytest.mark.parametrize("kind", [EmbedND, Slower])
def test_stored_keys_are_those_of_the_patched_model_at_their_place(policy, kind, monkeypatch):
    """Layer 0's keys are computed anew from the take's latents: Wan's first block in few lines."""
    banks, close = [], Session.close

    def watch(session):
        if session.device.type != "meta":
            for stream in session.streams.values():
                for bank in stream.caches["history"].banks:
                    rows = slice(0, bank.committed)
                    columns = (bank.frame, bank.cell, bank.position)
                    banks.append(
                        ([c[rows].clone() for c in columns], bank.read(0, rows)[0][0].clone())
                    )
        close(session)

    monkeypatch.setattr(Session, "close", watch)
    model = with_rope(kind)
    sampler = tiny.sampler(policy, 3)
    out = tiny.guide(tiny.prepared(model), sampler, tiny.noise_of(15, 4, 4), steps=2)

    latents = model.get_model_object("latent_format").process_in(out)
    rope = embedder(kind)
    assert banks
    for (frame, cell, position), keys in banks:
        bare = keys_of_first_layer(model.model.diffusion_model, latents)
        own = bare[frame, cell]
        ids = torch.stack([position, cell // 2, cell % 2], -1)[None].float()
        expected = apply_rope1(own[None], rope(ids).movedim(1, 2))[0]
        assert torch.allclose(keys, expected, atol=2e-6)


def keys_of_first_layer(net, latents):
    """Of clean latents, before rotation: `[frames, cells, heads, D]`."""
    x = net.patch_embedding(latents)[0].permute(1, 2, 3, 0).flatten(1, 2)
    time = net.time_embedding(sinusoidal_embedding_1d(net.freq_dim, torch.zeros(1)))
    modulation = net.blocks[0].modulation + net.time_projection(time).unflatten(1, (6, net.dim))
    shift, scale = modulation[:, 0], modulation[:, 1]
    attention = net.blocks[0].self_attn
    k = attention.norm_k(attention.k(net.blocks[0].norm1(x) * (1 + scale) + shift))
    return k.unflatten(-1, (attention.num_heads, -1))


def test_a_rope_that_cannot_be_turned_is_refused_where_keys_are_turned():
    noise, steps = tiny.noise_of(15, 4, 4), []
    model = tiny.prepared(with_rope(Standing))

    def take(policy):
        sampler = tiny.sampler(policy, 3)
        return tiny.guide(
            model, sampler, noise, steps=2, callback=lambda *progress: steps.append(progress)
        )

    for policy in (KVPolicy(SinkWindow(3, 9, "shifted")), KVPolicy(schedule=RollingForcing(9))):
        with pytest.raises(ValueError, match="changes its RoPE .* Remove that node, or use"):
            take(policy)
    assert not steps
    assert torch.isfinite(take(KVPolicy(SinkWindow(3, 9)))).all()


def test_a_table_of_another_node_is_refused_where_keys_are_turned():
    model = tiny.tiny_model(layers=2, causal=False).clone()
    encode = model.get_model_object("diffusion_model").rope_encode
    model.add_object_patch(
        "diffusion_model.rope_encode", lambda *args, **options: encode(*args, **options)
    )
    sampler = tiny.sampler(KVPolicy(SinkWindow(3, 9, "shifted")), 3)
    with pytest.raises(ValueError, match="changes its RoPE"):
        tiny.guide(tiny.prepared(model), sampler, tiny.noise_of(15, 4, 4), steps=2)
