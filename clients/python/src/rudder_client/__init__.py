"""Steering vectors in, activations out: a client of the Rudder inference server for interpretability work.

Start with `Rudder`; the manual is the package's README.
"""

from . import features, ops
from .activations import ActivationCache
from .capture import Capture, CaptureResult, Features, FileCapture, KeptCapture, Lens, LensReading
from .capture_files import read_capture
from .client import Rudder
from .dataset import DatasetShard, capture_dataset, read_dataset
from .errors import (ArrayError, CaptureError, ConflictError, FieldError, FileFormatError, IgnoredFieldsError,
                     KeyRefusedError, NotFoundError, RequestError, RudderError, ServerError)
from .feature_arrays import TopFeatures
from .features import Dictionary, DictionaryLayer, run_with_features
from .generation import Choice, Generation
from .hooks import Point, hook_name
from .modules import ModuleOp, SteeringModule
from .ops import SteeringOp
from .parallel import parallel_map
from .patching import PatchSweep
from .patterns import AttentionPattern, Patterns
from .selectors import Control, FeatureGate, Probe, PromptScore, Ramp, Select, StepWindow
from .vectors import Named, SteeringVectors

__version__ = "0.1.0"

__all__ = [
    "ActivationCache", "ArrayError", "AttentionPattern", "Capture", "CaptureError", "CaptureResult", "Choice", "ConflictError", "Control", "DatasetShard",
    "Dictionary", "DictionaryLayer", "FeatureGate", "Features", "FieldError", "FileCapture", "FileFormatError", "Generation", "IgnoredFieldsError",
    "KeptCapture", "KeyRefusedError", "Lens", "LensReading", "ModuleOp",
    "Named", "NotFoundError", "PatchSweep", "Patterns", "Point", "Probe", "PromptScore", "Ramp", "RequestError", "Rudder", "RudderError", "Select",
    "ServerError", "SteeringModule", "SteeringOp", "SteeringVectors", "StepWindow", "TopFeatures", "capture_dataset",
    "features", "hook_name", "ops", "parallel_map", "read_capture", "read_dataset", "run_with_features",
]
