"""What travels with a model call: the caches of all streams, and the one place where attention
meets the policy.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import RLock

import torch
from torch import Tensor

from ..kv_policies import (
    FORECAST,
    HISTORY,
    Attention,
    Forward,
    Geometry,
    KVPolicy,
    State,
    Take,
    View,
)
from .rerun import Rerun
from .stream import Stream


class Session:
    """One take of one batch item. It holds every tensor of the run; `close` drops them all.

    Forwards into different caches may run at the same time, in threads of their own: `lock` guards
    which streams there are, and which caches have rows in work.
    """

    def __init__(
        self,
        policy: KVPolicy,
        geometry: Geometry,
        take: Take,
        dtype: torch.dtype,
        device: torch.device,
        places: Mapping[str, torch.device] = {},
    ):
        """`places`: the devices of lanes that do not live on `device`."""
        self.policy = policy
        self.geometry = geometry
        self.take = take
        self.dtype = dtype
        self.device = device
        self.places = places
        self.streams: dict[Hashable, Stream] = {}
        # By cache, the forward that made room in it; gone once its rows are history.
        self.in_work: dict[str, Forward] = {}
        self.latents: dict[int, Tensor] = {}  # of finished chunks that will be run again, by index
        self.rerun: Rerun | None = None  # while a forward runs several finished chunks again
        self.lock = RLock()

    def place(self, cache: str) -> torch.device:
        """The device on which a cache lives."""
        return self.places.get(self.policy.schedule.lane(cache), self.device)

    def stream(self, key: Hashable) -> Stream:
        """The stream of a conditioning, made at its first forward."""
        with self.lock:
            if key not in self.streams:
                stream = Stream(self.policy, self.geometry, self.take, self.dtype, self.place)
                self.streams[key] = stream
                for forward in self.in_work.values():
                    stream.begin(forward)
            return self.streams[key]

    def state(self, names: Mapping[Hashable, str]) -> State:
        """All streams between two chunks, on the CPU, by names that outlive the run's own keys."""
        return {names[key]: stream.state() for key, stream in self.streams.items()}

    def restore(self, state: State, names: Mapping[Hashable, str]):
        """Begin with such streams; KVMemoryError where they do not fit this session."""
        for key, name in names.items():
            if name in state:
                self.stream(key).restore(state[name])

    # -- rows: in work, then history

    def begin(self, forward: Forward, oldest: int | None = None):
        """Make room for a forward's span in every stream: rows before latent frame `oldest` go,
        policies evict.
        """
        with self.lock:
            self.in_work[forward.cache] = forward
            for stream in self.streams.values():
                stream.begin(forward, oldest)

    def begin_again(self, forward: Forward):
        """Make room for a chunk that is run once more; policies take no part."""
        self.in_work[forward.cache] = forward
        for stream in self.streams.values():
            stream.reserve(forward)

    def commit(self, cache: str, forwards_before: Mapping[Hashable, int] = {}):
        """The rows in work are history from now on, for all streams. `forwards_before` counts each
        stream's forwards before the one that wrote the rows.
        """
        with self.lock:
            for key, stream in self.streams.items():
                if stream.forwards[cache] > forwards_before.get(key, 0):
                    _check_layers(stream.missing_layers(cache))
                    stream.caches[cache].commit()
                elif cache == HISTORY:
                    raise RuntimeError(
                        "A conditioning took part in denoising and not in the clean pass, so its "
                        "history would stay noisy. "
                        "This guider calls the model in a way that AR sampling does not know; use "
                        "CFGGuider or BasicGuider."
                    )
                else:  # a prompt that is off at this noise level has no history at it
                    stream.caches[cache].discard()
            del self.in_work[cache]

    def discard(self, cache: str):
        """The rows in work are not to be read again."""
        with self.lock:
            for stream in self.streams.values():
                stream.caches[cache].discard()
            del self.in_work[cache]

    def turn(self, cache: str, first_position: int):
        """Turn a cache's history in time, to begin at a position."""
        with self.lock:
            for stream in self.streams.values():
                stream.caches[cache].turn(first_position)

    # -- attention

    def attend(
        self,
        forward: Forward,
        keys: list[Hashable],
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention: Attention,
        is_extra: Sequence[bool] = (),
    ) -> Tensor:
        """Self-attention of one layer. q, k, v `[B, N, H, D]`, rotated, one batch
        row per stream in `keys`. Returns `[B, N, H * D]`.

        `is_extra`: for each batch row, whether its stream has made the step's own forward already,
        and a guider runs the model once more (Skip Layer Guidance); empty: no batch row is. An
        extra forward leaves nothing in a cache, but for a retention's history, which the clean pass
        overwrites.
        """
        batch_rows = [
            self._attend(
                forward,
                self.stream(key),
                layer,
                q[i : i + 1],
                k[i : i + 1],
                v[i : i + 1],
                attention,
                is_extra=bool(is_extra) and is_extra[i],
            )
            for i, key in enumerate(keys)
        ]
        return batch_rows[0] if len(batch_rows) == 1 else torch.cat(batch_rows)

    def _attend(
        self,
        forward: Forward,
        stream: Stream,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention: Attention,
        is_extra: bool,
    ) -> Tensor:
        """One stream's batch row: write its keys and values, then read by the policy."""
        stream.forwards[forward.cache] += layer == 0
        if _writes(forward, is_extra):
            stream.count_layer(forward.cache, layer)
        views = stream.views(forward, layer)
        if len(views) == 1:  # all heads together: no gather, no scatter
            return self._attend_in(forward, stream, layer, q, k, v, views[0], attention, is_extra)
        out = torch.empty_like(q)
        for view in views:
            heads = view.bank.head_index[layer]
            sides = (side[:, :, heads] for side in (q, k, v))
            read = self._attend_in(forward, stream, layer, *sides, view, attention, is_extra)
            out[:, :, heads] = read.unflatten(-1, (len(heads), -1))
        return out.flatten(2)

    def _attend_in(
        self,
        forward: Forward,
        stream: Stream,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        view: View,
        attention: Attention,
        is_extra: bool,
    ) -> Tensor:
        """One group of heads, `[1, N, H, D]` each. Returns `[1, N, H * D]`."""
        if stream.retention.chooses and not is_extra:
            stream.retention.choose(layer, forward, q, view.bank)
        if self.rerun:
            own = self.rerun.take(view.bank, layer, k, v)
            return attention(q, *view.with_own(*own).read(layer))
        if _writes(forward, is_extra):
            view.bank.write(layer, k, v)
        else:
            view = view.with_own(k, v)
        if stream.retention.needs_queries:
            stream.retention.observe(layer, forward.chunk, forward.step, q, view.bank)
        return stream.selection.read(layer, forward, q, view, attention)

    def act(
        self,
        forward: Forward,
        keys: list[Hashable],
        layer: int,
        part: str,
        k: Tensor,
        v: Tensor,
        is_extra: Sequence[bool] = (),
    ) -> list[tuple[Tensor, Tensor]]:
        """What a part of a layer's action module reads, for each batch row: keys and values
        `[places, frames, heads, head_dim]` of the latest latent frames, those of the chunk in work
        last. `k` and `v`, `[B, places, F, heads, head_dim]`, rotated, are the chunk's own.

        `keys` and `is_extra` as in `attend`.
        """
        read = []
        for i, key in enumerate(keys):
            rows = self.stream(key).caches[forward.cache].actions
            if forward.cache == HISTORY or not (is_extra and is_extra[i]):
                rows.write(layer, part, k[i], v[i])
                read.append(rows.read(layer, part))
            else:
                read.append(rows.read_with(layer, part, k[i], v[i]))
        return read

    def text(
        self,
        forward: Forward,
        prompts: list[tuple[Hashable, Hashable]],
        layer: int,
        project: Callable[[], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """Cross-attention keys and values `[B, L, H * D]`, projected once per layer and device for
        as long as a stream's prompt stays.

        `prompts`: the stream of each batch row and its prompt.
        """
        place = self.place(forward.cache), layer
        held = [self.stream(key).text.get(place, (None,)) for key, _ in prompts]
        if any(text[0] != prompt for text, (_, prompt) in zip(held, prompts)):
            k, v = project()
            held = [(prompt, k[i : i + 1], v[i : i + 1]) for i, (_, prompt) in enumerate(prompts)]
            for (key, _), text in zip(prompts, held):
                self.stream(key).text[place] = text
        parts = [text[1:] for text in held]
        if len(parts) == 1:
            return parts[0]
        k, v = (torch.cat(side) for side in zip(*parts))
        return k, v

    # -- outputs of modules, held and forecast

    def can_forecast(self, forward: Forward, keys: Sequence[Hashable], module: Hashable) -> bool:
        """Whether a module's output is to be forecast and every stream in the forward has held
        some. Without, as of a prompt that begins at this step, it is computed.
        """
        return forward.features == FORECAST and all(
            module in self.stream(key).features for key in keys
        )

    def hold_output(
        self, forward: Forward, keys: Sequence[Hashable], module: Hashable, output: Tensor
    ):
        """A module's output in a computed forward, `[B, N, C]`, one batch row per stream."""
        for i, key in enumerate(keys):
            self.stream(key).features.hold(module, forward.step, output[i : i + 1])

    def forecast_output(
        self, forward: Forward, keys: Sequence[Hashable], module: Hashable
    ) -> Tensor:
        """The same for a forward that is forecast, `[B, N, C]`."""
        rows = [self.stream(key).features.forecast(module, forward.step) for key in keys]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def count_forecast(self, forward: Forward, keys: Sequence[Hashable]):
        """A forward reached the model's layers, though it is forecast."""
        for key in keys:
            self.stream(key).forwards[forward.cache] += 1

    def forget_features(self):
        """After a chunk's last step."""
        for stream in self.streams.values():
            stream.forget_features()

    # -- counts

    def copied_bytes(self, forward: Forward) -> int:
        """Most that the caches hold twice while they make room for a forward, or while it reads
        several caches together.
        """
        return max((stream.copied_bytes(forward) for stream in self.streams.values()), default=0)

    def forward_counts(self, cache: str = HISTORY) -> dict[Hashable, int]:
        """Forwards into a cache so far, by stream."""
        with self.lock:
            return {key: stream.forwards[cache] for key, stream in self.streams.items()}

    def close(self):
        for stream in self.streams.values():
            stream.free()
        self.streams.clear()
        self.in_work.clear()
        self.latents.clear()


def _writes(forward: Forward, is_extra: bool) -> bool:
    """Whether a forward leaves keys and values in its cache, see `Session.attend`."""
    return forward.cache == HISTORY or not is_extra


def _check_layers(missing: list[int]):
    if missing:
        layers = ", ".join(map(str, missing))
        raise ValueError(
            f"Another node leaves layers of the model ({layers}) out of a forward that the take "
            "remembers, so nothing of them would be remembered (Skip Layer Guidance (simple) and "
            "its kin). Remove that node, or use a schedule that remembers by clean passes, such as "
            "the one without a schedule node."
        )
