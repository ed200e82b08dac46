"""Muon: momentum whose update of each matrix is made orthogonal by a Newton-Schulz iteration."""

from collections import defaultdict

import torch


@torch.compile
def orthogonal(stack):
    """The nearest (semi-)orthogonal matrices to a stack of matrices, roughly, in bfloat16."""
    x = stack.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For weight matrices. Its step has the size of AdamW's at the same learning rate; matrices of one shape
    are worked on together."""

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(matrices, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = defaultdict(list)
            for matrix in group["params"]:
                shapes[matrix.shape].append(matrix)
            for shape, matrices in shapes.items():
                gradients = torch.stack([matrix.grad for matrix in matrices])
                state = self.state[matrices[0]]
                average = state.setdefault("momentum", torch.zeros_like(gradients))
                average.lerp_(gradients, 1 - group["momentum"])
                update = orthogonal(gradients.lerp(average, group["momentum"])).float()
                size = 0.2 * max(shape) ** 0.5 * group["lr"]
                torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(matrices, list(update.unbind()), alpha=-size)
