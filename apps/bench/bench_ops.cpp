// rudder bench ops: each macro-op of a model's shape, timed against the machine's own ceilings.
