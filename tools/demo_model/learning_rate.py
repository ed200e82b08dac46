"""The course of the learning rate over the time that training has."""

WARM_UP_STEPS = 100


def rate(step, elapsed, plateau):
    """The learning rate's share of its peak after `step` steps and this share of the time."""
    decay = 1.0 if elapsed < plateau else max(0.0, (1 - elapsed) / (1 - plateau))
    return min(1.0, (step + 1) / WARM_UP_STEPS) * decay
