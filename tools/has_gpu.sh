#!/usr/bin/env bash
# Whether this machine has an NVIDIA GPU: the driver's device, or that of WSL.
[ -e /dev/nvidiactl ] || [ -e /dev/dxg ]
