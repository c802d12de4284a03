"""Calibrate Heads in the real host, on tiny random Wan models."""

import json
import os

import folder_paths
import pytest
import torch
from keepsake.host.heads import calibrate
from keepsake.host.heads.calibrate import calibrate_heads
from keepsake.host.heads.heads import load_head_table
from keepsake.host.model.profiles import ARProfile, with_profile
from support import tiny

LATENT = {"samples": torch.zeros(1, 16, 5, 6, 10)}


@pytest.fixture(autouse=True)
def output(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_paths, "output_directory", str(tmp_path))
    monkeypatch.delitem(folder_paths.folder_names_and_paths, "kv_head_tables", raising=False)
    return tmp_path / "kv_head_tables"


def model(silent=None):
    """A patched tiny model with two layers of four heads; the output of head `silent` (layer, head)
    reaches nothing.
    """
    built = tiny.tiny_model(layers=2)
    if silent:
        layer, head = silent
        built.model.diffusion_model.blocks[layer].self_attn.o.weight.data[
            :, 16 * head : 16 * head + 16
        ] = 0
    return with_profile(tiny.patch(built), ARProfile(name="tiny", chunk_frames=2, steps=2))


def test_a_head_that_nobody_hears_scores_zero_and_the_others_more(output):
    table, path = calibrate_heads(model(silent=(1, 2)), tiny.prompt(1), LATENT, seed=3, name="tiny")
    assert table.measure == "x0_drift" and table.model == "tiny" and table.scores[1][2] == 0
    assert sum(score > 1e-6 for layer in table.scores for score in layer) == 7
    assert load_head_table(os.path.basename(path)).scores[0] == pytest.approx(
        table.scores[0], rel=1e-5
    )
    assert [entry.name for entry in output.iterdir()] == ["tiny_00001_.json"]


def test_it_goes_on_where_it_was_stopped_and_not_with_another_seed(output, monkeypatch):
    whole, _ = calibrate_heads(model(), tiny.prompt(1), LATENT, seed=3, name="whole")
    takes, sample_take = [], calibrate.sample_take

    def count(*args, **options):
        takes.append(options["policy"].selection)
        if len(takes) == 5:
            raise InterruptedError
        return sample_take(*args, **options)

    monkeypatch.setattr(calibrate, "sample_take", count)
    with pytest.raises(InterruptedError):
        calibrate_heads(model(), tiny.prompt(1), LATENT, seed=3, name="part")
    assert len(json.loads((output / "part.partial.json").read_text())["scores"]) == 3
    table, _ = calibrate_heads(model(), tiny.prompt(1), LATENT, seed=3, name="part")
    assert len(takes) == 5 + 1 + 5 and table.scores == whole.scores
    (output / "other.partial.json").write_text('{"key": "x", "scores": [[0, 0, 99.0]]}')
    assert (
        calibrate_heads(model(), tiny.prompt(1), LATENT, seed=3, name="other")[0].scores
        == whole.scores
    )
    (output / "half.partial.json").write_text('{"key": ')
    assert (
        calibrate_heads(model(), tiny.prompt(1), LATENT, seed=3, name="half")[0].scores
        == whole.scores
    )


def test_two_score_models_give_the_distribution_matching_loss():
    real, fake = tiny.tiny_model(causal=False, seed=5), tiny.tiny_model(causal=False, seed=6)
    table, _ = calibrate_heads(
        model(),
        tiny.prompt(1),
        LATENT,
        seed=3,
        name="dm",
        real=real,
        fake=fake,
        negative=tiny.prompt(2),
    )
    assert table.measure == "dm_loss" and min(map(min, table.scores)) > 0
    same, _ = calibrate_heads(
        model(), tiny.prompt(1), LATENT, seed=3, name="same", real=real, fake=real
    )
    assert max(map(max, same.scores)) == 0  # scores that agree leave no loss


def test_one_score_model_alone_is_refused():
    with pytest.raises(ValueError, match="Only the real score model is connected"):
        calibrate_heads(
            model(), tiny.prompt(1), LATENT, seed=3, name="x", real=tiny.tiny_model(causal=False)
        )
