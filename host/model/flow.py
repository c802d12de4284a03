"""Noise levels: rectified flow with a shift, and with a table of steps."""

from typing import NamedTuple

import torch
from comfy.model_sampling import CONST, ModelSamplingDiscreteFlow
from torch import Tensor

NEAR = 1e-6  # a level is a step of a table when it is as near


class Step(NamedTuple):
    """One denoising step of a model that was trained with three numbers for it."""

    timestep: float  # what the model is told
    sigma: float  # by which x0 is computed: x0 = x - sigma v
    renoise: float  # to which x0 of the step before is noised


def integer_steps(shift: float, indices: tuple[int, ...]) -> tuple[Step, ...]:
    """The steps of LingBot-World: rows of a table of 1000 shifted levels, whose timesteps are
    whole numbers.

    Rows whose timesteps are cut to the same number share it. A step's x0 is then computed by the
    level of the first such row, and noised to that of the second (`FlowUniPCMultistepScheduler`
    as the authors call it: `index_for_timestep` and their own search differ). The take begins with
    noise alone.
    """
    u = torch.linspace(0.999, 0.0, 1001, dtype=torch.float64)[:-1]
    levels = shift * u / (1 + (shift - 1) * u)
    timesteps = (1000 * levels).long()
    steps = []
    for index in indices:
        rows = torch.nonzero(timesteps == timesteps[index]).flatten()
        first, second = (float(levels[row].float()) for row in (rows[0], rows[:2][-1]))
        steps.append(Step(float(timesteps[index]), first, second if steps else 1.0))
    return tuple(steps)


class ShiftedFlow(ModelSamplingDiscreteFlow, CONST):
    """Rectified flow with shifted noise levels."""


class TabledFlow(ShiftedFlow):
    """Rectified flow in which the levels of a table have timesteps and re-noise levels of their
    own; all others are the flow's.
    """

    table: tuple[Step, ...] = ()

    def timestep(self, sigma):
        return self._of_step(sigma, super().timestep(sigma), "timestep")

    def renoise_levels(self, sigma: Tensor) -> Tensor:
        """To which level x0 is noised for a step at `sigma`."""
        return self._of_step(sigma, sigma, "renoise")

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        return super().noise_scaling(self.renoise_levels(sigma), noise, latent_image, max_denoise)

    def _of_step(self, sigma: Tensor, values: Tensor, name: str) -> Tensor:
        """`values`, and the number of that name where `sigma` is a step of the table."""
        sigma = torch.as_tensor(sigma)
        for step in self.table:
            values = torch.where((sigma - step.sigma).abs() < NEAR, getattr(step, name), values)
        return values


def flow_of(model, shift: float, table: tuple[Step, ...] = ()) -> ShiftedFlow:
    """What the host's node ModelSamplingSD3 puts on a MODEL, with a table of steps. Made here,
    since the node's own call differs by host version.
    """
    flow = (TabledFlow if table else ShiftedFlow)(model.model.model_config)
    before = model.get_model_object("model_sampling")
    flow.set_parameters(shift=shift, multiplier=1000)  # a timestep is 1000 times the noise level
    if hasattr(before, "noise_scale"):  # not in every host that Keepsake is tested with
        flow.set_noise_scale(before.noise_scale)
    if table:
        flow.table = table
    return flow


def renoise_levels(flow, sigmas: Tensor) -> Tensor:
    """To which levels x0 is noised for steps at `sigmas`: the same, but where a table says so."""
    return flow.renoise_levels(sigmas) if isinstance(flow, TabledFlow) else sigmas
