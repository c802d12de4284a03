"""Who makes a take's forwards: its guider, and others over the roles' MODELs and over the host's
clones on other devices.
"""

from torch import Tensor

from ...kv_policies import Forward
from ...rollout.rollout import Model
from ...rollout.session import Session
from ..forward.conditioning import conditioning_of_item
from ..forward.devices import guiders_of_lanes
from ..forward.first_chunk import refine_first_chunk
from ..forward.model_calls import guided_model
from ..forward.roles import Turns, guider_of_role
from .plan import HostPlan


class Players:
    """The guiders of one sampling call. `close` gives back what they changed in the host."""

    def __init__(
        self,
        guider,
        plan: HostPlan,
        extra_args: dict,
        sigmas: Tensor,
        noise: Tensor,
        latent_image: Tensor | None,
    ):
        """`noise` [B, C, T, 2h, 2w], of the whole batch; `sigmas` [steps + 1]."""
        self.guider = guider
        self.plan = plan
        self.extra_args = extra_args
        self.sigmas = sigmas
        self.batch = len(noise)
        shape, seed = tuple(noise.shape), extra_args.get("seed")
        self.roles = {
            role: guider_of_role(model, guider, sigmas, noise, latent_image, seed)
            for role, model in plan.take_plan.policy.models.items()
        }
        self.lanes = guiders_of_lanes(guider, plan.lanes, sigmas, noise, latent_image, seed)
        self.turns = Turns(guider, lambda model, cache: plan.shape_to_load(model, shape, cache))
        players = dict.fromkeys((guider, *self.roles.values(), *self.lanes.values()))
        self._conds = {player: player.conds for player in players}  # of the whole batch

    def model(self, session: Session, item: int, noise_index: int) -> Model:
        """The rollout's calls for one batch item, whose noise has the number `noise_index`."""
        for player, of_batch in self._conds.items():
            player.conds = conditioning_of_item(of_batch, item, self.batch)
        model = self._model(session, noise_index)
        if self.plan.first_sigmas is None:
            return model
        return refine_first_chunk(
            model, self.plan.take_plan.chunks, self.sigmas, self.plan.first_sigmas.to(self.sigmas)
        )

    def _model(self, session: Session, noise_index: int) -> Model:
        """Over the take's guider, or over one for each role where there are any, or for each lane
        on another device.
        """
        guider = self.guider
        schedule = self.plan.take_plan.policy.schedule

        def calls(player, keep_text: bool = True) -> Model:
            extra_args = self.extra_args
            if player is not guider:
                extra_args = {**extra_args, "model_options": player.model_options}
            prompts = self.plan.prompts
            return guided_model(player, extra_args, session, noise_index, prompts, keep_text)

        if not self.roles and not self.lanes:
            return calls(guider)

        # 1. A stream keeps the text keys of one model: that of the role with the most forwards. For
        # other roles they are computed at each forward.
        most = self.roles.get(schedule.roles[-1], guider) if self.roles else guider
        keeps_text = {most, *self.lanes.values()}
        models = {player: calls(player, player in keeps_text) for player in self._conds}

        # 2. The lane's clone makes a forward, or else the role's model, or else the sampler's.
        def model_for(forward: Forward) -> Model:
            lane = schedule.lane(forward.cache)
            if lane in self.lanes:
                return models[self.lanes[lane]]
            player = self.roles.get(schedule.role_of(forward.cache), guider)
            if self.roles:
                # The first forward allocates the cache.
                self.turns.claim(player, cache=not session.streams)
            return models[player]

        return Model(
            lambda forward, x, sigma: model_for(forward).predict(forward, x, sigma),
            lambda forward, x, sigma: model_for(forward).write(forward, x, sigma),
            models[guider].noise,
        )

    def close(self):
        self.turns.close()
        for player, of_batch in self._conds.items():
            player.conds = of_batch
