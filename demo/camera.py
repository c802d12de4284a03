"""The demo world's camera as a take's control."""

from torch import Tensor

from ..host.model.world_control import CameraInput
from .world import COLUMNS, ROWS, control, poses


def camera_input(positions: Tensor, rows: int = ROWS, columns: int = COLUMNS) -> CameraInput:
    """What the model follows, and where the camera stands, for policies that ask. `positions` are
    left edges of the view in cells, long [T]; `rows` and `columns`: the latents' size.
    """
    values = control(positions, rows, columns).movedim(0, 1)[None].contiguous()
    return CameraInput(values=values, poses=poses(positions))
