"""A fake video transformer of two attention layers, so that the loop and the policies run without a
host.
"""

from threading import Thread

import torch
from keepsake.kv_policies import MODULES, Geometry, Take
from keepsake.kv_policies.cache.rope import temporal_frequencies, turn, turn_in_time
from keepsake.rollout.chunks import in_pieces, plan_chunks, plan_piece
from keepsake.rollout.loop import run
from keepsake.rollout.rollout import Model, Rollout
from keepsake.rollout.session import Session
from keepsake.rollout.timeline import PromptStart, plan_prompts, prompt_frames
from keepsake.rollout.trace import Trace
from keepsake.rollout.walk import spread

GRID, HEADS, DIM, LAYERS, CHANNELS = (2, 3), 2, 8, 2, 4


def geometry(chunk_frames=2, **changes) -> Geometry:
    standard = dict(
        layers=LAYERS,
        heads=HEADS,
        head_dim=DIM,
        grid=GRID,
        chunk_frames=chunk_frames,
        temporal_channels=4,
    )
    return Geometry(**(standard | changes))


def attention(q, k, v):
    """Plain softmax attention, `[B, N, H, D]` over `[B, S, H, D]` -> `[B, N, H * D]`."""
    weight = torch.einsum("bnhd,bshd->bhns", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bhns,bshd->bnhd", weight, v).flatten(2)


def rotate_in_time(x, position, channels, theta=10000.0):
    """Queries or keys `[B, S, H, D]` rotated at temporal positions, float64 `[S]`."""
    return turn(x, *turn_in_time(position, temporal_frequencies(channels, theta), x.device))


class FakeTransformer:
    """x [1, C, F, 2h, 2w] -> x0 of the same shape.

    `calls` records (frames of the chunk, sigma) of every forward, `reads` its first frame, its
    prompt and the history frames that it could read; `on_forward(session, forward, x, sigma)` is
    called after each, before it is committed. Prompts differ by `words`.
    """

    def __init__(
        self, session, streams=("positive",), seed=0, words=0.3, on_forward=lambda *a: None
    ):
        self.session = session
        self.streams = streams
        self.words = words
        self.on_forward = on_forward
        self.calls = []
        self.reads = []
        random = torch.Generator().manual_seed(seed)
        width = HEADS * DIM
        self.inward = torch.randn(CHANNELS * 4, width, generator=random, dtype=torch.float64) * 0.3
        self.outward = torch.randn(width, CHANNELS * 4, generator=random, dtype=torch.float64) * 0.3
        self.layers = [
            torch.randn(3, width, width, generator=random, dtype=torch.float64) * 0.3
            for _ in range(LAYERS)
        ]

    def __call__(self, forward, x, sigma):
        span = forward.span
        # of all frames, or of each
        levels = torch.as_tensor(sigma, dtype=torch.float64).reshape(-1)
        self.calls.append((span.numbers[0], len(span), round(float(levels[0]), 4)))
        h, w = GRID
        y = (
            x.unflatten(3, (h, 2))
            .unflatten(5, (w, 2))
            .permute(0, 2, 3, 5, 1, 4, 6)
            .reshape(1, -1, CHANNELS * 4)
            @ self.inward
        )
        y = (
            y
            + levels.expand(len(span)).repeat_interleave(h * w)[:, None]
            + self.words * forward.cue.prompt
        )
        frame = torch.tensor(span.positions, dtype=torch.float64).repeat_interleave(h * w)
        for layer, weights in enumerate(self.layers):
            y = y + self._attend(forward, layer, weights, frame, y)[:1].tanh()
        self._record(forward)
        self.on_forward(self.session, forward, x, sigma)
        y = (y @ self.outward).view(1, len(span), h, w, CHANNELS, 2, 2).permute(0, 4, 1, 2, 5, 3, 6)
        return y.reshape(x.shape)

    def _attend(self, forward, layer, weights, frame, y):
        """Attention of a layer, whose output also stands for those of its other modules."""
        module = layer, MODULES[0]
        if forward.features and self.session.can_forecast(forward, self.streams, module):
            return self.session.forecast_output(forward, self.streams, module)
        q, k, v = ((y @ weight).unflatten(-1, (HEADS, DIM)) for weight in weights)
        q, k = (rotate_in_time(u, frame, 4) for u in (q, k))
        rows = len(self.streams)
        sides = (u.expand(rows, *u.shape[1:]) for u in (q, k, v))
        out = self.session.attend(forward, list(self.streams), layer, *sides, attention)
        for module in MODULES if forward.features else ():
            self.session.hold_output(forward, self.streams, (layer, module), out)
        return out

    def _record(self, forward):
        for stream in list(self.session.streams.values())[:1]:
            bank = stream.caches[forward.cache].banks[0]
            self.reads.append(
                (
                    forward.span.numbers[0],
                    forward.cue.prompt,
                    bank.frame[..., : bank.committed].unique().tolist(),
                )
            )


def banks(session, stream="positive"):
    """The banks of a stream's history, one for each group of heads."""
    return session.streams[stream].caches["history"].banks


def bank(session, stream="positive"):
    """The first of them, which is the only one where all heads keep the same tokens."""
    return banks(session, stream)[0]


def noise_of(frames, seed=1):
    return torch.randn(
        (1, CHANNELS, frames, GRID[0] * 2, GRID[1] * 2),
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )


def thread():
    """A worker of `rollout.walk`."""

    def start(work):
        running = Thread(target=work)
        running.start()
        return running.join

    return start


def take(
    policy,
    frames=8,
    chunk_frames=2,
    prefix=None,
    sigmas=(1.0, 0.8, 0.5, 0.0),
    streams=("positive",),
    on_step=lambda *a: None,
    on_chunk=lambda session, chunk: None,
    on_forward=lambda *a: None,
    workers=0,
    starts=(),
    words=0.3,
    memory=None,
    stop_after=0,
    on_memory=None,
    every=0,
    together=False,
    poses=None,
):
    """Run a take: latents `[1, C, T, 2h, 2w]`, the trace, and the transformer that made it;
    `workers`: threads, each with a device of its own; `starts`: of the prompts after the first;
    `memory` and its kin as in ARVideoSampler, a memory `every` so many chunks.
    """
    # 1. The plan.
    given = 0 if prefix is None else prefix.shape[2]
    chunks, *_ = plan_prompts(
        plan_chunks(frames, chunk_frames, given, memory.chunks if memory else ()),
        [[PromptStart(0), *starts]],
        4,
        recache_together=together,
        cut_forgets=policy.retention.cut_forgets,
    )
    about = Take(
        frames, given, tuple(sigmas), seed=1, prompt_frames=prompt_frames(chunks), poses=poses
    )
    lanes = spread(policy.schedule.graph(chunks, about.steps), workers) if workers else {}
    # 2. Caches and the model.
    session = Session(
        policy,
        geometry(chunk_frames),
        about,
        torch.float64,
        torch.device("cpu"),
        {lane: torch.device("cpu", number) for lane, number in lanes.items()},
    )
    transformer = FakeTransformer(session, streams, words=words, on_forward=on_forward)
    trace = Trace()

    def fresh(number, step, like):
        return torch.randn(
            like.shape,
            generator=torch.Generator().manual_seed(1000 * number + step),
            dtype=like.dtype,
        )

    threads = [thread() for _ in range(workers)]
    # 3. From where to go on, and how far.
    pieces, names = [], {stream: f"prompt {i}" for i, stream in enumerate(streams)}
    if memory:
        memory.check_carried(policy.schedule.carries(chunks, about.steps, len(memory.chunks)))
        pieces = [memory.latents]
    finished = len(memory.chunks) if memory else 0
    rollout = Rollout(
        chunks=chunks,
        sigmas=torch.tensor(sigmas, dtype=torch.float64),
        noise=noise_of(frames),
        prefix=prefix,
        model=Model(transformer, transformer, fresh),
        session=session,
        trace=trace,
        on_step=on_step,
        workers={lane: threads[number] for lane, number in lanes.items()},
        pieces=in_pieces(plan_piece(chunks, finished, stop_after), every),
        goes_on=on_memory is not None,
        memory=memory,
        names=names,
    )

    def keep():
        if on_memory:
            on_memory(rollout.memory({}, torch.cat(pieces, 2), prefix, names))

    # 4. Chunk after chunk.
    for chunk, latents in run(rollout, keep):
        pieces.append(latents)
        on_chunk(session, chunk)
    return torch.cat(pieces, 2), trace, transformer
