import pytest

from rudder_client import Point, hook_name
from rudder_client.hooks import SITES


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("layer", [0, 7, 31])
def test_both_spellings_name_the_point(site, layer):
    point = Point(layer, site)
    assert Point.parse(str(point)) == Point.parse(point.hook_name) == point


def test_names_are_those_of_transformer_lens():
    assert hook_name("resid_post", 5) == "blocks.5.hook_resid_post"
    assert hook_name("mlp_act", 0) == "blocks.0.mlp.hook_post"
    assert hook_name("mlp_in", 3) == "blocks.3.mlp.hook_in"
    assert hook_name("attn_z", 3) == "blocks.3.attn.hook_z"
    assert hook_name("routed_experts", 3) == "blocks.3.mlp.hook_expert_indices"
    assert hook_name("router_logits", 3) == "router_logits.3"
    assert hook_name("attn_in", 3) == "attn_in.3"  # TransformerLens's hooks there are other tensors


@pytest.mark.parametrize("name", ["", "resid_post", "resid_post.-1", "resid_post.05", "blocks.5", "blocks.x.hook_resid_post",
                                  "blocks.5.hook_attn_in", "blocks.5.ln1.hook_normalized", "resid.5",
                                  "blocks.5.hook_resid_post.hook_sae_acts_post", "resid_post.5 "])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="names no point"):
        Point.parse(name)
