"""A profile that a user gives to a MODEL of any loader: whether it can be that MODEL's."""

from .kinds import kind_of_backbone
from .profiles import ARProfile
from .published import CHECKPOINTS

IMAGE_CHANNELS = 36  # inputs of Wan's image-to-video models: noisy latent, mask, start image
PLAIN = "plain Wan"


def check_choice(backbone, profile: ARProfile) -> str:
    """A sentence for the user where the MODEL may not be what it seems, or "". ValueError where the
    profile is that of another kind of model.
    """
    row = next((row for row in CHECKPOINTS if row.profile == profile), None)
    kind = kind_of_backbone(backbone)
    wanted, is_now = row.kind if row else "", kind.name if kind else ""
    if row and wanted != is_now:
        why = ""
        if wanted:
            why = (
                " ComfyUI's own loaders drop the tensors that follow a camera or keys, so a file "
                "of such a model becomes a broken plain one: load it with AR Video Model Loader."
            )
        raise ValueError(
            f"The profile '{profile.name}' is for {wanted or PLAIN} models, and this MODEL is a "
            f"{is_now or PLAIN} one.{why or ' Choose the profile that belongs to it.'}"
        )
    # LingBot-World without its camera is to the last tensor a Wan2.2 image-to-video model.
    takes_image = backbone.patch_embedding.weight.shape[1] == IMAGE_CHANNELS
    if not kind and takes_image and backbone.img_emb is None:
        return (
            "This MODEL has the shape of Wan2.2's image-to-video model, and so has LingBot-World "
            "where another loader dropped its camera tensors. If the file is LingBot-World, load "
            "it with AR Video Model Loader; Wan's own model was never trained to be rolled out."
        )
    return ""
