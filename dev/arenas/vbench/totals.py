"""VBench's totals: each dimension between its least and most, and weighted means of them.

The numbers are VBench's (`scripts/constant.py`), and so is the rule (`scripts/cal_final_score.py`).
"""

from collections.abc import Mapping

QUALITY = {  # dimension: its least, its most, its weight
    "subject_consistency": (0.1462, 1.0, 1.0),
    "background_consistency": (0.2615, 1.0, 1.0),
    "temporal_flickering": (0.6293, 1.0, 1.0),
    "motion_smoothness": (0.706, 0.9975, 1.0),
    "aesthetic_quality": (0.0, 1.0, 1.0),
    "imaging_quality": (0.0, 1.0, 1.0),
    "dynamic_degree": (0.0, 1.0, 0.5),
}
SEMANTIC = {
    "object_class": (0.0, 1.0, 1.0),
    "multiple_objects": (0.0, 1.0, 1.0),
    "human_action": (0.0, 1.0, 1.0),
    "color": (0.0, 1.0, 1.0),
    "spatial_relationship": (0.0, 1.0, 1.0),
    "scene": (0.0, 0.8222, 1.0),
    "appearance_style": (0.0009, 0.2855, 1.0),
    "temporal_style": (0.0, 0.364, 1.0),
    "overall_consistency": (0.0, 0.364, 1.0),
}
TOTALS = ("quality", "semantic", "total")
QUALITY_WEIGHT, SEMANTIC_WEIGHT = 4, 1


def totals(scores: Mapping[str, float]) -> dict[str, float]:
    """`quality`, `semantic` and `total`, each where all that it needs is there."""
    found = {
        name: mean_of(scores, parts)
        for name, parts in (("quality", QUALITY), ("semantic", SEMANTIC))
        if parts.keys() <= scores.keys()
    }
    if len(found) == 2:
        weighted = QUALITY_WEIGHT * found["quality"] + SEMANTIC_WEIGHT * found["semantic"]
        found["total"] = weighted / (QUALITY_WEIGHT + SEMANTIC_WEIGHT)
    return found


def mean_of(scores: Mapping[str, float], parts: Mapping[str, tuple]) -> float:
    weighted = sum(
        (scores[name] - least) / (most - least) * weight
        for name, (least, most, weight) in parts.items()
    )
    return weighted / sum(weight for _, _, weight in parts.values())
