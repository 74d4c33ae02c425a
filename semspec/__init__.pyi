from semspec.client import Answer as Answer
from semspec.client import Gateway as Gateway
from semspec.decoding import STRATEGIES as STRATEGIES
from semspec.decoding import Backends as Backends
from semspec.decoding import Generation as Generation
from semspec.decoding import Options as Options
from semspec.decoding import Strategy as Strategy
from semspec.decoding import decode as decode
from semspec.errors import SemspecError as SemspecError
from semspec.records import SegmentTrace as SegmentTrace
from semspec.stack import Stack as Stack
from semspec.stack import StackConfig as StackConfig
from semspec.types import Finished as Finished
from semspec.types import Judgement as Judgement
from semspec.types import SamplingParams as SamplingParams
from semspec.types import Segment as Segment
from semspec.types import SegmentRecord as SegmentRecord

__all__: list[str]
__version__: str
