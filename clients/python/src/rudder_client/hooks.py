"""Names of points: Rudder's sites by layer, and the hook names of TransformerLens for the same tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Site -> what TransformerLens calls the tensor below "blocks.L.", or None where it has no hook for it. attn_in, mlp_in
# and final_norm are the normed rows with the norm's gain; TransformerLens's hook_normalized is the row without.
SITES: dict[str, str | None] = {
    "resid_pre": "hook_resid_pre",
    "attn_in": None,
    "attn_z": "attn.hook_z",
    "attn_out": "hook_attn_out",
    "mhc_attn_post_mix": None,  # of a residual of streams: numbers that they are written by; captured, not steered
    "mhc_attn_res_mix": None,
    "resid_mid": "hook_resid_mid",
    "mlp_in": "mlp.hook_in",
    "router_logits": None,  # of a mixture of experts: one for each
    "routed_experts": "mlp.hook_expert_indices",  # the numbers of those that were chosen: captured, not steered
    "mlp_act": "mlp.hook_post",
    "mlp_out": "hook_mlp_out",
    "mhc_ffn_post_mix": None,
    "mhc_ffn_res_mix": None,
    "resid_post": "hook_resid_post",
    "final_norm": None,
}
_SITE_OF_HOOK = {hook: site for site, hook in SITES.items() if hook is not None}


@dataclass(frozen=True, order=True)
class Point:
    """A site of one layer, counted from 0."""

    layer: int
    site: str

    @property
    def hook_name(self) -> str:
        """`blocks.5.hook_resid_post`, or `attn_in.5` where TransformerLens has no hook for the tensor."""
        hook = SITES[self.site]
        return str(self) if hook is None else f"blocks.{self.layer}.{hook}"

    def __str__(self) -> str:
        return f"{self.site}.{self.layer}"

    @classmethod
    def parse(cls, name: str) -> Point:
        """Reads `blocks.5.hook_resid_post` and `resid_post.5`. ValueError for anything else."""
        block = re.fullmatch(r"blocks\.(0|[1-9]\d*)\.(.+)", name)
        if block and block[2] in _SITE_OF_HOOK:
            return cls(int(block[1]), _SITE_OF_HOOK[block[2]])
        plain = re.fullmatch(r"(\w+)\.(0|[1-9]\d*)", name)
        if plain and plain[1] in SITES:
            return cls(int(plain[2]), plain[1])
        raise ValueError(f"'{name}' names no point: blocks.L.hook_SITE or SITE.L, SITE one of {', '.join(SITES)}")


def hook_name(site: str, layer: int) -> str:
    """The key of a site's layer in an `ActivationCache`: `hook_name("resid_post", 5)` is `blocks.5.hook_resid_post`."""
    return Point.parse(f"{site}.{layer}").hook_name
