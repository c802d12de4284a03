"""The dtype in which a MODEL computes."""

import torch


def compute_dtype(model) -> torch.dtype:
    """The dtype of a MODEL's activations, and so of its keys and values.

    The host applies object patches when it loads a model, and its ModelComputeDtype node sets
    `manual_cast_dtype` by one. Read here through the patches, the dtype is the same before and
    after loading; `model.model.get_dtype_inference()` is not.
    """
    return model.get_model_object("manual_cast_dtype") or model.model_dtype()
