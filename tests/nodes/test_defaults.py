"""A policy node and the policy that it makes have the same defaults."""

from dataclasses import fields

import pytest
from keepsake.kv_policies import HeadMap, KVPolicy
from keepsake.kv_policies.words import title_of
from keepsake.nodes.sockets import DIRECTED

from .test_schema import nodes

NODES = [node for node in nodes() if node.define_schema().node_id.startswith("KeepsakePolicy")]
# On purpose: a new node needs no gamma; a policy made in code has the paper's rule.
DIFFER = {"PolicyDeCoPrune": ["mode"]}
# What a socket must bring, by the name of the input and of the policy's parameter.
BROUGHT = {"head_map": HeadMap("any", 1, ((),))}
STORAGE = next(node for node in nodes() if node.__name__ == "KVStorageNode")


def made_of_defaults(node) -> KVPolicy:
    values = {
        part.id: part.as_dict()["default"]
        for part in node.define_schema().inputs
        if "default" in part.as_dict()
    }
    values |= {
        part.id: BROUGHT[part.id]
        for part in node.define_schema().inputs
        if part.id in BROUGHT and not part.optional
    }
    (policy,) = node.execute(**values).args
    return policy


@pytest.mark.parametrize("node", [*NODES, STORAGE], ids=lambda node: node.__name__)
def test_a_node_and_its_policy_have_the_same_defaults(node):
    policy = made_of_defaults(node)
    for slot in ("retention", "selection", "schedule", "storage"):
        part = getattr(policy, slot)
        if slot == "retention" and part == DIRECTED.retention:
            continue  # what Directed Forcing starts from: on purpose no default of SinkWindow
        brought = {name: value for name, value in BROUGHT.items() if hasattr(part, name)}
        own = type(part)(**brought)
        differ = [
            field.name
            for field in fields(part)
            if getattr(part, field.name) != getattr(own, field.name)
        ]
        expected = DIFFER.get(node.__name__, []) if slot == "retention" else []
        assert differ == expected, f"{node.__name__} and {type(part).__name__} differ in {differ}"


@pytest.mark.parametrize("node", [*NODES, STORAGE], ids=lambda node: node.__name__)
def test_a_refusal_calls_a_part_as_its_node_is_called(node):
    policy = made_of_defaults(node)
    (filled,) = policy.filled
    name = node.define_schema().display_name.removeprefix("KV Policy: ")
    assert title_of(getattr(policy, filled)) == name
