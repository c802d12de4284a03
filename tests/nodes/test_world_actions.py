"""World Actions: a control for the sampler, a prompt without text, and what it says of the keys."""

import pytest
import torch
from keepsake.nodes.world_actions import WorldActions


def made(keys="w-4,none-2", mode="universal", frames=3):
    return WorldActions.execute({"samples": torch.zeros(1, 16, frames, 4, 4)}, mode, keys)


def test_it_gives_a_control_of_the_latents_length_and_a_prompt():
    control, prompt = made().args
    assert (control.name, tuple(control.values.shape)) == ("world_actions", (1, 72, 3, 1, 1))
    ((text, options),) = prompt
    assert text.shape == (1, 1, 4096) and not text.any() and options == {}


@pytest.mark.parametrize(
    "keys, words",
    [
        ("w-4,none-2", "3 latent frames, 9 pixel frames, of universal: 6 are written, then no key"),
        ("w-9", "9 are written, which fills the take"),
        ("w-9,s-3", "12 are written, of which the last 3 are left out"),
    ],
)
def test_it_says_what_becomes_of_the_keys(keys, words):
    assert words in made(keys).ui["text"][0]


def test_an_image_is_refused():
    with pytest.raises(ValueError, match="The latent is that of an image"):
        WorldActions.execute({"samples": torch.zeros(1, 16, 4, 4)}, "universal", "w-4")
