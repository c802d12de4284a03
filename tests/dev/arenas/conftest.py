"""Lists of prompts in the forms that dev/bench vbench reads."""

import json

import pytest

INFO = [  # in the form of VBench_full_info.json
    {"prompt_en": "In a still frame, a stop sign", "dimension": ["temporal_flickering"]},
    {
        "prompt_en": "Fireworks.",
        "dimension": ["overall_consistency", "aesthetic_quality", "imaging_quality"],
    },
    {"prompt_en": "a bus", "dimension": ["object_class"], "auxiliary_info": {"object": "bus"}},
    {"prompt_en": "Fireworks.", "dimension": ["temporal_style"]},
]


@pytest.fixture
def info(tmp_path):
    path = tmp_path / "VBench_full_info.json"
    path.write_text(json.dumps(INFO))
    return path


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("A river/brook: wide?\n\nA town by a lake.\n")
    return path
