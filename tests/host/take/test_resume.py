"""Save and resume inside ComfyUI: several runs, a fresh process, branches, and memories that do not
fit.
"""

import subprocess
import sys
from pathlib import Path

import comfy.model_management
import comfy.sample
import pytest
import torch
from keepsake.host.budget.report import budget_line
from keepsake.host.forward.prompts import add_prompt
from keepsake.host.model.fingerprint import fingerprint
from keepsake.host.take import outer_call
from keepsake.host.take.memory_wire import NOT_KEPT
from keepsake.host.take.take import sample_take
from keepsake.kv_policies import (
    DeCoPrune,
    DirectedForcing,
    FlashForward,
    Hierarchical,
    KVMemoryError,
    KVPolicy,
    KVStorage,
    RandomPrune,
    RollingForcing,
    SinkWindow,
)
from keepsake.nodes.sampler import ARVideoSamplerSelect
from keepsake.rollout.memory_file import load_memory, save_memory
from support import tiny

FLASH = FlashForward(
    anchor_stride=4,
    block_anchors=2,
    anchor_window=2,
    planner_history=1,
    stage_history=1,
    budget_frames=6,
)
SEED, FRAMES, CHUNK = 11, 9, 2


@pytest.fixture(scope="module")
def model(model):
    return tiny.prepared(model)


def make(
    model,
    policy=None,
    frames=FRAMES,
    prompt=1,
    change=None,
    keep=None,
    cfg=1.0,
    prefix=None,
    size=(4, 6),
    batch=1,
    **options,
):
    latent = {"samples": torch.zeros(batch, 16, frames, *size)}
    arguments = {"seed": SEED, "steps": 3, "chunk_frames": CHUNK, **options}
    positive = (
        tiny.prompt(prompt)
        if change is None
        else add_prompt(tiny.prompt(prompt), tiny.prompt(5), change, "swap", 0, 0)
    )
    return sample_take(
        model,
        positive,
        tiny.prompt(2),
        cfg,
        latent,
        policy=policy,
        prefix=prefix and {"samples": prefix[0]},
        on_memory=None if keep is None else keep.append,
        **arguments,
    )


def saved(model, path, stop_after=5, **options):
    kept = []
    part, _ = make(model, keep=kept, stop_after=stop_after, **options)
    save_memory(kept[0], path)
    return part, load_memory(path)


@pytest.mark.parametrize(
    "policy",
    [
        KVPolicy(),
        KVPolicy(SinkWindow(1, 6, "shifted")),
        KVPolicy(DeCoPrune(gamma=0.5)),
        KVPolicy(schedule=FLASH),
        KVPolicy(schedule=RollingForcing(15)),
        KVPolicy(
            selection=DirectedForcing(uniform_budget=4, active_from=6), schedule=RollingForcing(15)
        ),
    ],
    ids=lambda policy: type(policy.retention).__name__ + type(policy.schedule).__name__,
)
@pytest.mark.parametrize(
    "cfg, prefix",
    [(1.0, None), (3.0, [tiny.noise_of(3, 4, 6, seed=8)])],
    ids=["plain", "guided, from a prefix"],
)
def test_two_runs_are_one_to_the_last_bit(model, policy, cfg, prefix, tmp_path):
    whole, stats = make(model, policy, cfg=cfg, prefix=prefix)
    part, memory = saved(model, tmp_path / "m.safetensors", policy=policy, cfg=cfg, prefix=prefix)
    rest, later = make(model, policy, cfg=cfg, memory=memory)
    frames_made = part["samples"].shape[2]
    assert 5 <= frames_made < FRAMES and torch.equal(
        part["samples"], whole["samples"][:, :, :frames_made]
    )
    assert torch.equal(rest["samples"], whole["samples"])
    assert later.frames == stats.frames == FRAMES and later.chunks[0].start_frame == frames_made
    assert any(f"Carried on at latent frame {frames_made}" in note for note in later.notes)


def test_a_take_goes_on_where_its_history_lies_elsewhere(model, tmp_path):
    policies = [
        KVPolicy(SinkWindow(1, 6, "shifted")),
        KVPolicy(SinkWindow(1, 6, "shifted"), storage=KVStorage("model", device="cpu")),
    ]
    whole, _ = make(model, policies[0])
    for first, then in (policies, policies[::-1]):
        _, memory = saved(model, tmp_path / "m.safetensors", policy=first)
        assert torch.equal(make(model, then, memory=memory)[0]["samples"], whole["samples"])
    with pytest.raises(KVMemoryError, match="storage"):
        make(model, KVPolicy(SinkWindow(1, 6, "shifted"), storage=KVStorage("int8")), memory=memory)


def test_the_plan_of_a_take_that_goes_on_counts_what_it_brings(model, tmp_path, monkeypatch):
    seen, own = [], outer_call.budget_of
    monkeypatch.setattr(
        outer_call, "budget_of", lambda *given: seen.append(own(*given)) or seen[-1]
    )
    for policy in (KVPolicy(SinkWindow(1, 6)), KVPolicy()):
        _, memory = saved(model, tmp_path / "m.safetensors", policy=policy)
        _, later = make(model, policy, memory=memory)
        expected = [
            (chunk.row.start_frame, chunk.row.bank_bytes, chunk.row.allocated_bytes)
            for chunk in seen[-1].estimate.least
        ]
        assert expected == [
            (row.start_frame, row.bank_bytes, row.allocated_bytes) for row in later.chunks
        ] and "5 chunks (3 made before)" in budget_line(seen[-1])
    monkeypatch.setattr("keepsake.host.budget.budget.MARGIN", 0)
    for function in ("get_total_memory", "get_free_memory"):
        monkeypatch.setattr(
            comfy.model_management,
            function,
            lambda device=None, nbytes=seen[-1].needed[0] - 1, **more: nbytes,
        )
    with pytest.raises(
        ValueError,
        match="makes it fit: \\(1\\) a latent of 8 frames .29 pixel frames. instead of 9.$",
    ):
        make(model, policy, memory=memory)


def test_a_take_goes_on_in_another_process(model, tmp_path):
    whole, _ = make(model, KVPolicy(SinkWindow(1, 6)))
    saved(model, tmp_path / "m.safetensors", policy=KVPolicy(SinkWindow(1, 6)))
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[3] / "dev"), str(Path(__file__).parent)]!r}
from support.pack import load_pack, use_host
use_host("--cpu"); load_pack()
import torch
torch.set_grad_enabled(False)
import test_resume as t
model = t.tiny.prepared(t.tiny.tiny_model(layers=2))
memory = t.load_memory(t.Path({str(tmp_path / "m.safetensors")!r}))
out, _ = t.make(model, t.KVPolicy(t.SinkWindow(1, 6)), memory=memory)
torch.save(out["samples"], {str(tmp_path / "out.pt")!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True), whole["samples"])


def test_the_sampler_for_samplercustomadvanced_stops_and_goes_on_too(model, tmp_path):
    """Its noise and sigmas come from the host's nodes."""

    def select(**options):
        sampler = ARVideoSamplerSelect.execute(CHUNK, KVPolicy(SinkWindow(1, 6)), **options).result[
            0
        ]
        noise = comfy.sample.prepare_noise(torch.zeros(1, 16, FRAMES, 4, 6), SEED)
        return tiny.guide(model, sampler, noise, tiny.prompt(1), tiny.prompt(2), steps=3, seed=SEED)

    whole, _ = make(model, KVPolicy(SinkWindow(1, 6)))
    part, memory = saved(model, tmp_path / "m.safetensors", policy=KVPolicy(SinkWindow(1, 6)))
    assert torch.equal(select(stop_after=5), part["samples"]) and torch.equal(
        select(kv_memory=memory), whole["samples"]
    )
    assert torch.equal(select(kv_memory=memory, stop_after=7), whole["samples"][:, :, :8])
    with pytest.raises(ValueError, match="kept no KV memory"):
        select(kv_memory=NOT_KEPT)


def test_one_memory_under_two_prompts_branches_and_says_so(model, tmp_path):
    part, memory = saved(model, tmp_path / "m.safetensors")
    branches = [make(model, prompt=prompt, memory=memory) for prompt in (1, 5, 5)]
    same, other, again = (taken["samples"] for taken, _ in branches)
    frames_made = part["samples"].shape[2]
    assert torch.equal(same[:, :, :frames_made], other[:, :, :frames_made]) and not torch.equal(
        same[:, :, frames_made:], other[:, :, frames_made:]
    )
    assert torch.equal(other, again)
    assert [
        any("prompts are not those" in note for note in stats.notes) for _, stats in branches
    ] == [False, True, True]


@pytest.mark.parametrize("change, expected", [(8, False), (2, True)], ids=["later", "already"])
def test_a_prompt_that_comes_in_after_the_memory_is_no_other_than_it_was_saved_with(
    model, tmp_path, change, expected
):
    _, memory = saved(model, tmp_path / "m.safetensors")
    rest, stats = make(model, change=change, memory=memory)
    assert any("prompts are not those" in note for note in stats.notes) == expected
    assert torch.equal(rest["samples"], make(model, change=change)[0]["samples"]) == (not expected)


def test_a_longer_latent_extends_a_finished_take(model, tmp_path):
    first, memory = saved(model, tmp_path / "m.safetensors", stop_after=0, frames=5)
    longer, stats = make(model, memory=memory)
    assert (
        torch.equal(longer["samples"][:, :, :5], first["samples"])
        and longer["samples"].shape[2] == FRAMES
    )
    assert any("begun at 5 latent frames and goes on to 9" in note for note in stats.notes)


@pytest.mark.parametrize(
    "change, match",
    [
        (dict(seed=12), "saved with the seed 11, and this take has 12"),
        (dict(steps=2), "noise levels .* and this take has"),
        (
            dict(policy=KVPolicy(SinkWindow(1, 6))),
            "the policy retention FullKV, and this take has retention SinkWindow. Connect",
        ),
        (dict(size=(4, 8)), r"latents of \[16, 4, 6\] .*, and this take has \[16, 4, 8\]"),
        (dict(chunk_frames=3), "the geometry chunk_frames 2, and this take has chunk_frames 3"),
        (dict(cfg=2.0), "has 1 prompt stream, and this take 2"),
        (dict(frames=5), "holds 6 latent frames and the latent has 5"),
        (dict(stop_after=6), "use 7 to 9"),
        (dict(prefix=[tiny.noise_of(1, 4, 6)]), "prefix is not the one"),
        (
            dict(policy=KVPolicy(schedule=Hierarchical(6))),
            r"Hierarchical \(HiAR\) finishes no chunk before",
        ),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_memory_of_another_take_is_refused_before_sampling(model, tmp_path, change, match):
    _, memory = saved(model, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=match):
        make(model, memory=memory, callback=lambda *a: pytest.fail("sampled"), **change)


@pytest.mark.parametrize("of", [DeCoPrune, RandomPrune], ids=lambda kind: kind.__name__)
def test_a_memory_from_before_a_parameter_came_goes_on_with_its_default(model, tmp_path, of):
    def policy(**parameters):
        pruning = DeCoPrune(gamma=0.5, **parameters)
        return KVPolicy(pruning if of is DeCoPrune else of(pruning))

    whole, _ = make(model, policy())
    _, memory = saved(model, tmp_path / "m.safetensors", policy=policy())
    assert memory.about["policy"]["retention"].pop("reindex_bands") == "all"
    assert torch.equal(make(model, policy(), memory=memory)[0]["samples"], whole["samples"])
    with pytest.raises(KVMemoryError, match="reindex_bands all, and .* reindex_bands fast"):
        make(model, policy(reindex_bands="fast"), memory=memory)


def test_of_the_same_policy_only_the_values_that_differ_are_told(model, tmp_path):
    _, memory = saved(model, tmp_path / "m.safetensors", policy=KVPolicy(SinkWindow(1, 6)))
    with pytest.raises(
        KVMemoryError,
        match="the policy retention window_frames 6, and this take has retention window_frames 8. "
        "Connect",
    ):
        make(model, KVPolicy(SinkWindow(1, 8)), memory=memory)


def test_another_control_is_told_and_a_longer_one_that_begins_the_same_is_not(tmp_path):
    model, control = (
        tiny.prepared(tiny.tiny_model(layers=2, in_dim=32)),
        torch.randn(1, 16, 12, 4, 6),
    )
    _, memory = saved(model, tmp_path / "m.safetensors", control=control[:, :, :FRAMES])
    turned = torch.cat([control[:, :, :7], -control[:, :, 7:]], 2)
    runs = [
        make(model, memory=memory, control=path[:, :, :frames], frames=frames)[1]
        for path, frames in ((control, FRAMES), (control, 12), (turned, FRAMES))
    ]
    assert [
        any(
            "control is not the one" in note and "from latent frame 6 on" in note
            for note in stats.notes
        )
        for stats in runs
    ] == [False, False, True]


def test_changes_of_prompt_before_the_join_are_not_told_again(model, tmp_path):
    positive = add_prompt(
        add_prompt(tiny.prompt(1), tiny.prompt(4), 2, "swap", 0, 0), tiny.prompt(5), 8, "swap", 0, 0
    )
    kept, options = [], dict(seed=SEED, steps=2, chunk_frames=CHUNK)
    notes = [
        sample_take(
            model,
            positive,
            None,
            1.0,
            {"samples": torch.zeros(1, 16, FRAMES, 4, 6)},
            **options,
            **more,
        )[1].notes
        for more in (dict(), dict(stop_after=5, on_memory=kept.append))
    ]
    notes.append(
        sample_take(
            model,
            positive,
            None,
            1.0,
            {"samples": torch.zeros(1, 16, FRAMES, 4, 6)},
            **options,
            memory=kept[0],
        )[1].notes
    )
    expected = [
        [note for note in of_run if "the prompt changes" in note] for of_run in (notes[0], notes[2])
    ]
    assert expected[0][1:] == expected[1] and len(expected[1]) == 1


def test_an_error_shows_without_our_folders():
    from execution import full_type_name

    assert full_type_name(KVMemoryError) == "KVMemoryError"


def test_another_model_and_another_lora_are_refused(model, tmp_path):
    _, memory = saved(model, tmp_path / "m.safetensors")
    with pytest.raises(KVMemoryError, match="weights of the fingerprint"):
        make(tiny.prepared(tiny.tiny_model(layers=2, seed=5)), memory=memory)
    lora = model.clone()
    lora.add_patches(
        {"diffusion_model.blocks.0.self_attn.q.weight": (torch.ones(64, 64) * 0.01,)}, 0.5
    )
    with pytest.raises(KVMemoryError, match="weights of the fingerprint"):
        make(lora, memory=memory)
    _, memory = saved(lora, tmp_path / "m.safetensors")
    make(lora, memory=memory)


def test_a_checkpoint_with_a_merged_lora_is_refused(model, tmp_path):
    _, memory = saved(model, tmp_path / "m.safetensors")
    merged = tiny.tiny_model(layers=2)
    merged.model.diffusion_model.blocks[1].self_attn.q.weight.data += 0.01
    with pytest.raises(KVMemoryError, match="weights of the fingerprint"):
        make(tiny.prepared(merged), memory=memory)


def test_a_fingerprint_does_not_tell_what_is_loaded():
    model, name = (
        tiny.prepared(tiny.tiny_model(layers=2)),
        "diffusion_model.blocks.0.self_attn.q.weight",
    )
    lora = model.clone()
    lora.add_patches({name: (torch.ones(64, 64) * 0.01,)}, 0.5)
    before, attention = (
        [fingerprint(each) for each in (model, lora)],
        model.model.diffusion_model.blocks[0].self_attn,
    )
    plain = attention.q.weight.clone()
    for loaded in (lora, model, lora):
        make(loaded, frames=2)
        assert torch.equal(attention.q.weight, plain) == (
            loaded is model
        )  # the host patches in place
        assert [fingerprint(each) for each in (model, lora)] == before and before[0] != before[1]


def test_flash_forward_does_not_change_its_length(model, tmp_path):
    _, memory = saved(model, tmp_path / "m.safetensors", policy=KVPolicy(schedule=FLASH))
    with pytest.raises(KVMemoryError, match="plans by the take.s length"):
        make(model, KVPolicy(schedule=FLASH), frames=12, memory=memory)


def test_tensors_that_do_not_fit_are_refused_before_sampling(model, tmp_path):
    _, memory = saved(model, tmp_path / "m.safetensors")
    bank = memory.streams["prompt 0"]["memories"]["history"]["banks"][0]
    bank["layers"][1]["k"] = bank["layers"][1]["k"][:, 1:]
    with pytest.raises(KVMemoryError, match="'k' is torch.float32 .* and must be"):
        make(model, memory=memory, callback=lambda *a: pytest.fail("sampled"))


def test_a_batch_keeps_no_memory_and_goes_on_from_none(model, tmp_path):
    with pytest.raises(
        ValueError,
        match="a KV memory is that of one take. Use a batch of 1, or turn keep_memory off",
    ):
        make(model, batch=2, keep=[])
    _, memory = saved(model, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="Use a batch of 1, or disconnect kv_memory"):
        make(model, batch=2, memory=memory)
